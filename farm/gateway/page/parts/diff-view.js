/** Lines of a diff, and the files of a patch. */

import {html, useState} from "../lib/dom.js";
import {visible} from "../lib/text.js";

const SIGNS = {add: "+", del: "−", same: " ", hunk: "", meta: ""};

/** @param {{lines: import("../lib/diff.js").Line[], most?: number, label: string}} props */
export function DiffLines({lines, most = 400, label}) {
  const [open, setOpen] = useState(false);
  const shown = open ? lines : lines.slice(0, most);
  return html`<div class="diff" tabindex="0" role="region" aria-label=${label}>
    ${shown.map((line) => html`<div class=${line.kind}><span
      aria-hidden="true">${SIGNS[line.kind]}</span>${line.kind === "add" ? html`<span class="sr">added </span>`
        : line.kind === "del" ? html`<span class="sr">removed </span>`
          : ""}<code>${visible(line.text.slice(0, 2000))}${line.text.length > 2000 ? "…" : ""}</code></div>`)}
    ${lines.length > most && html`<p class="more"><button class="quiet" aria-expanded=${open} onClick=${() =>
      setOpen(!open)}>${open ? "show less" : `show all ${lines.length} lines`}</button></p>`}
  </div>`;
}

/** @param {{files: import("../lib/diff.js").FileDiff[]}} props */
export function Files({files}) {
  return files.map(
    (file) =>
      html`<details class="file" open=${files.length < 12} key=${file.path}>
        <summary>
          <code>${visible(file.path)}</code> <span class="good">+${file.added}</span>
          <span class="bad">−${file.removed}</span>
        </summary>
        <${DiffLines} lines=${file.lines} label=${`Diff of ${visible(file.path)}`} />
      </details>`,
  );
}
