/** Long lists: only the rows near the view are in the document. Heights are measured, and may change. */

import {html, useEffect, useLayoutEffect, useRef, useState} from "../lib/dom.js";

const AHEAD = 600;

/**
 * Rows of any height. `scroller` is the element that scrolls; `onRange` hears which rows are shown.
 * @param {{count: number, estimate: number, row: (index: number) => any, scroller: any, label: string,
 *   onRange?: (first: number, last: number) => void, handle?: any, role?: string}} props
 */
export function Windowed({count, estimate, row, scroller, label, onRange, handle, role = "list"}) {
  const place = useRef(/** @type {any} */ (null));
  const heights = useRef(/** @type {Map<number, number>} */ (new Map()));
  const [range, setRange] = useState([0, Math.min(count, Math.ceil(1200 / estimate))]);
  const [measured, setMeasured] = useState(0);
  const target = useRef(/** @type {number | null} */ (null));
  const heightOf = (/** @type {number} */ index) => heights.current.get(index) ?? estimate;
  const offsetOf = (/** @type {number} */ index) => {
    let sum = 0;
    for (let at = 0; at < index; at += 1) sum += heightOf(at);
    return sum;
  };
  const look = () => {
    const pane = scroller.current;
    if (!pane || !place.current) return;
    const top = pane.getBoundingClientRect().top - place.current.getBoundingClientRect().top;
    let [first, sum] = [0, 0];
    while (first < count && sum + heightOf(first) < top - AHEAD) sum += heightOf(first++);
    let last = first;
    while (last < count && sum < top + pane.clientHeight + AHEAD) sum += heightOf(last++);
    setRange((before) => (before[0] === first && before[1] === last ? before : [first, last]));
    let shown = first;
    for (let at = offsetOf(first); shown < last - 1 && at + heightOf(shown) <= top + 8; shown += 1)
      at += heightOf(shown);
    onRange?.(shown, last);
  };
  useLayoutEffect(() => {
    look();
    const pane = scroller.current;
    const stop = () => (target.current = null);
    pane?.addEventListener("scroll", look, {passive: true});
    pane?.addEventListener("wheel", stop, {passive: true});
    pane?.addEventListener("touchstart", stop, {passive: true});
    const resized = new ResizeObserver(look);
    if (pane) resized.observe(pane);
    return () => {
      pane?.removeEventListener("scroll", look);
      pane?.removeEventListener("wheel", stop);
      pane?.removeEventListener("touchstart", stop);
      resized.disconnect();
    };
  }, [count, scroller]);
  useEffect(() => {
    const watch = new ResizeObserver((entries) => {
      let changed = false;
      for (const entry of entries) {
        const index = Number(/** @type {HTMLElement} */ (entry.target).dataset.index);
        const height = /** @type {HTMLElement} */ (entry.target).offsetHeight;
        if (height && heights.current.get(index) !== height) {
          heights.current.set(index, height);
          changed = true;
        }
      }
      if (changed) setMeasured((before) => before + 1);
    });
    for (const child of place.current.children) if (child.dataset.index !== undefined) watch.observe(child);
    return () => watch.disconnect();
  }, [range[0], range[1], count]);
  useLayoutEffect(() => {
    if (target.current !== null) scrollTo(target.current);
    look();
  }, [measured, range[0], range[1]]);
  const scrollTo = (/** @type {number} */ index) => {
    const pane = scroller.current;
    if (!pane || !place.current) return;
    const base = place.current.getBoundingClientRect().top - pane.getBoundingClientRect().top + pane.scrollTop;
    pane.scrollTop = base + offsetOf(index) - 4;
  };
  const jump = (/** @type {number} */ index) => {
    target.current = index;
    scrollTo(index);
    look();
  };
  if (handle) handle.current = {jump};
  const [first, last] = [Math.min(range[0], count), Math.min(Math.max(range[1], 1), count)];
  const rows = [];
  for (let index = first; index < last; index += 1) {
    rows.push(
      html`<div
        key=${index}
        data-index=${index}
        role=${role === "list" ? "listitem" : undefined}
        aria-setsize=${role === "list" ? count : undefined}
        aria-posinset=${role === "list" ? index + 1 : undefined}
      >
        ${row(index)}
      </div>`,
    );
  }
  return html`<div
    ref=${place}
    class="windowed"
    role=${rows.length ? role : undefined}
    aria-label=${rows.length ? label : undefined}
  >
    <div class="spacer" role="presentation" style=${{height: `${offsetOf(first)}px`}}></div>
    ${rows}
    <div class="spacer" role="presentation" style=${{height: `${offsetOf(count) - offsetOf(last)}px`}}></div>
  </div>`;
}
