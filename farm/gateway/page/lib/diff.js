/** Diffs as lines: of a patch in git's form, and of an edit. */

/** @typedef {{kind: "add" | "del" | "same" | "hunk" | "meta", text: string}} Line */
/** @typedef {{path: string, added: number, removed: number, lines: Line[]}} FileDiff */

/** Return the files of a patch. @param {string} patch @returns {FileDiff[]} */
export function filesOf(patch) {
  /** @type {FileDiff[]} */
  const files = [];
  /** @type {FileDiff | null} */
  let file = null;
  let inHunk = false;
  for (const line of patch.split("\n")) {
    if (line.startsWith("diff --git ")) {
      const named = / b\/(.*)$/.exec(line);
      file = {path: named ? named[1] : line.slice(11), added: 0, removed: 0, lines: []};
      files.push(file);
      inHunk = false;
    } else if (file && line.startsWith("@@")) {
      inHunk = true;
      file.lines.push({kind: "hunk", text: line});
    } else if (file && inHunk && line.startsWith("+")) {
      file.added += 1;
      file.lines.push({kind: "add", text: line.slice(1)});
    } else if (file && inHunk && line.startsWith("-")) {
      file.removed += 1;
      file.lines.push({kind: "del", text: line.slice(1)});
    } else if (file && inHunk && line.startsWith(" ")) {
      file.lines.push({kind: "same", text: line.slice(1)});
    } else if (file && line && !/^(index|---|\+\+\+) /.test(line)) {
      file.lines.push({kind: "meta", text: line});
    }
  }
  return files;
}

/**
 * Return the lines of an edit: common lines at both ends stay, the rest is replaced.
 * @param {string} before @param {string} after @returns {Line[]}
 */
export function editLines(before, after) {
  const old = before ? before.split("\n") : [];
  const fresh = after ? after.split("\n") : [];
  let head = 0;
  while (head < Math.min(old.length, fresh.length) && old[head] === fresh[head]) head += 1;
  let tail = 0;
  while (
    tail < Math.min(old.length, fresh.length) - head &&
    old[old.length - 1 - tail] === fresh[fresh.length - 1 - tail]
  )
    tail += 1;
  const same = (/** @type {string} */ text) => ({kind: /** @type {const} */ ("same"), text});
  return [
    ...old.slice(Math.max(0, head - 3), head).map(same),
    ...old.slice(head, old.length - tail).map((text) => ({kind: /** @type {const} */ ("del"), text})),
    ...fresh.slice(head, fresh.length - tail).map((text) => ({kind: /** @type {const} */ ("add"), text})),
    ...fresh.slice(fresh.length - tail, fresh.length - tail + 3).map(same),
  ];
}

const OLD = ["old_str", "old_string"];
const NEW = ["new_str", "new_string", "file_text", "insert_text", "content", "contents"];

/**
 * Return path and edits of a call of an editing tool, or null for another call.
 * @param {any} args @returns {{path: string, edits: [string, string][]} | null}
 */
export function editOf(args) {
  const path = args.path ?? args.file_path ?? args.target_file;
  if (typeof path !== "string") return null;
  const text = (/** @type {any} */ from, /** @type {string[]} */ names) =>
    names.map((name) => from[name]).find((one) => typeof one === "string");
  const every = Array.isArray(args.edits) ? args.edits.filter((one) => one && typeof one === "object") : [args];
  const edits = every
    .map((one) => [text(one, OLD), text(one, NEW)])
    .filter(([old, fresh]) => old !== undefined || fresh !== undefined)
    .map(([old, fresh]) => /** @type {[string, string]} */ ([old ?? "", fresh ?? ""]));
  return edits.length ? {path, edits} : null;
}
