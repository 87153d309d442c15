/* Compare two texts word by word. */

/* Words of either text from which only the middle is shown as changed as a whole. */
const MOST_CELLS = 4_000_000;

/* Return pieces [kind, text] with kind "same", "a" or "b", in the order of the texts. */
function compareWords(a, b) {
  const [x, y] = [a, b].map((text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? []);
  let head = 0;
  while (head < x.length && head < y.length && x[head] === y[head]) head++;
  let tail = 0;
  while (tail < x.length - head && tail < y.length - head && x[x.length - 1 - tail] === y[y.length - 1 - tail]) tail++;
  const pieces = [];
  const add = (kind, words) => {
    if (words.length) pieces.push([kind, words.join("")]);
  };
  add("same", x.slice(0, head));
  const [u, v] = [x.slice(head, x.length - tail), y.slice(head, y.length - tail)];
  if (u.length * v.length > MOST_CELLS) {
    add("a", u);
    add("b", v);
  } else alignWords(u, v, add);
  add("same", x.slice(x.length - tail));
  return joinPieces(pieces);
}

/* Return pieces with what changed together in one piece for each text. Spaces and signs that both
   texts share between two changes belong to the change. */
function joinPieces(pieces) {
  const joined = [];
  let [a, b] = ["", ""];
  const flush = () => {
    if (a) joined.push(["a", a]);
    if (b) joined.push(["b", b]);
    [a, b] = ["", ""];
  };
  pieces.forEach(([kind, text], place) => {
    const between = (a || b) && pieces.slice(place + 1).some(([next]) => next !== "same");
    if (kind === "a") a += text;
    else if (kind === "b") b += text;
    else if (between && !/[\p{L}\p{N}]/u.test(text)) [a, b] = [a + text, b + text];
    else {
      flush();
      if (joined.at(-1)?.[0] === "same") joined.at(-1)[1] += text;
      else joined.push(["same", text]);
    }
  });
  flush();
  return joined;
}

/* Call `add` with the words of a longest common subsequence and those around it. */
function alignWords(u, v, add) {
  const width = v.length + 1;
  const lengths = new Uint16Array((u.length + 1) * width);
  for (let i = u.length - 1; i >= 0; i--)
    for (let j = v.length - 1; j >= 0; j--)
      lengths[i * width + j] =
        u[i] === v[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  let [i, j] = [0, 0];
  while (i < u.length && j < v.length) {
    if (u[i] === v[j]) {
      add("same", [u[i++]]);
      j++;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) add("a", [u[i++]]);
    else add("b", [v[j++]]);
  }
  add("a", u.slice(i));
  add("b", v.slice(j));
}

/* Return where an extracted answer stands in a text, as [start, end], or null. The last place that
   fits counts, in any letter case and number form. */
function findPlace(text, extracted) {
  const wanted = (extracted ?? "").trim();
  if (!wanted) return null;
  const quoted = wanted.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const inner =
    wanted.length > 80
      ? quoted
      : quoted.replace(/(?<=[0-9])(?=[0-9])/g, "[,_' ]?").replace(/ /g, "\\s+");
  const word = /[\p{L}\p{N}]/u;
  const before = word.test(wanted[0]) ? "(?<![\\p{L}\\p{N}_])" : "";
  const after = word.test(wanted[wanted.length - 1]) ? "(?![\\p{L}\\p{N}_])" : "";
  let place = null;
  for (const found of text.matchAll(new RegExp(before + inner + after, "giu")))
    place = [found.index, found.index + found[0].length];
  return place;
}
