/** Text of a sandbox, made visible: nothing in it can hide, move or imitate what the page itself says. */

const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const INVISIBLE = /[\u00ad\u200b-\u200d\u2028\u2029\u2060-\u2064\ufeff]|[\u{e0000}-\u{e007f}]/gu;

/**
 * Return `text` with control characters as pictures, and marks that turn or hide text by their names.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(/\r\n/g, "\n").replace(CONTROL, picture).replace(BIDI, named).replace(INVISIBLE, named);
}

/** @param {string} char */
function picture(char) {
  const code = char.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "\u2421" : named(char);
}

/** @param {string} char */
function named(char) {
  return `⟨U+${(char.codePointAt(0) || 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Return the first line, cut. @param {string} text @param {number} most */
export function oneLine(text, most = 120) {
  const line = visible(text.slice(0, 4 * most))
    .trim()
    .replace(/\s+/g, " ");
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}
