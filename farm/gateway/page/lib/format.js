/** Numbers and times as short text. */

/** @param {number | null | undefined} value */
export function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 10_000) return Math.round(value).toLocaleString("en");
  const [unit, size] = Math.abs(value) < 999_500 ? ["k", 1e3] : Math.abs(value) < 999_500_000 ? ["M", 1e6] : ["G", 1e9];
  return `${(value / size).toFixed(value / size < 100 ? 1 : 0)}${unit}`;
}

/** @param {number | null | undefined} value */
export function share(value) {
  return value === null || value === undefined || Number.isNaN(value)
    ? "–"
    : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

/** @param {number | null | undefined} value */
export function reward(value) {
  return value === null || value === undefined ? "–" : String(Math.round(value * 1000) / 1000);
}

/** @param {number | null | undefined} value seconds */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 6000) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${(value / 3600).toFixed(1)} h`;
}

/** @param {number} unix @param {number} [now] */
export function ago(unix, now = Date.now() / 1000) {
  const past = Math.max(0, now - unix);
  if (past < 60) return `${Math.round(past)} s ago`;
  if (past < 3600) return `${Math.round(past / 60)} min ago`;
  if (past < 86_400 * 2) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86_400)} d ago`;
}

/** @param {number | null} unix */
export function clock(unix) {
  return unix ? new Date(unix * 1000).toISOString().replace("T", " ").slice(0, 19) : "–";
}

/** @param {number} chars */
export function size(chars) {
  if (chars < 1000) return `${chars} characters`;
  return chars < 1e6 ? `${(chars / 1e3).toFixed(0)} k characters` : `${(chars / 1e6).toFixed(1)} M characters`;
}

/** @param {string} word */
export const words = (word) => word.replaceAll("_", " ");
