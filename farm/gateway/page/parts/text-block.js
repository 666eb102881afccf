/** A block of text of a sandbox: escaped, folded if it is long, and loaded in parts if it is huge. */

import {html, useState} from "../lib/dom.js";
import {enc, get} from "../lib/api.js";
import {size} from "../lib/format.js";
import {visible} from "../lib/text.js";

const FOLDED_LINES = 14;
const FOLDED_CHARS = 1600;
const PART = 50_000;

/** @param {string} text */
function fold(text) {
  const lines = text.split("\n", FOLDED_LINES + 1);
  const short = lines.length > FOLDED_LINES ? lines.slice(0, FOLDED_LINES).join("\n") : text;
  return short.slice(0, FOLDED_CHARS);
}

/**
 * `chars` is the length of the whole text. `source` names it, to load the rest.
 * @param {{text: string, chars?: number, source?: {rollout: string, part: string, position?: number, call?: number},
 *   label: string, kind?: string}} props
 */
export function TextBlock({text, chars = text.length, source, label, kind = ""}) {
  const [open, setOpen] = useState(false);
  const [loaded, setLoaded] = useState("");
  const [problem, setProblem] = useState("");
  const whole = loaded || text;
  const folded = fold(whole);
  const shown = open ? whole : folded;
  const rest = chars - [...(loaded || text)].length;
  const load = async () => {
    const {rollout, ...place} = source || {rollout: "", part: ""};
    try {
      const before = [...whole].length;
      const part = await get(`/v1/rollouts/${enc(rollout)}/text`, {...place, offset: before, limit: PART});
      setLoaded(whole + part.text);
      setOpen(true);
      setProblem("");
    } catch (error) {
      setProblem(String(/** @type {Error} */ (error).message));
    }
  };
  const end = shown.length < whole.length ? "…" : "";
  return html`<div class=${`text ${kind}`}>
    <pre tabindex="0" role="region" aria-label=${label}>${visible(shown) + end}</pre>
    ${
      (folded.length < whole.length || (rest > 0 && source)) &&
      html`<p class="more">
        ${
          folded.length < whole.length &&
          html`<button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>
            ${open ? "show less" : "show more"}
          </button>`
        }
        ${rest > 0 && source && html`<button class="quiet" onClick=${load}>load more of ${size(chars)}</button>`}
        ${problem && html`<span class="bad">${problem}</span>`}
      </p>`
    }
  </div>`;
}
