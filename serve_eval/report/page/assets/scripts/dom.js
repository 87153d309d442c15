/* Build elements from values: texts only ever become text nodes. Read packed data. */

const CONTROL =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/* Return a text with an escape in place of each control character, direction mark and lone
   surrogate, as the terminal shows them. */
function reveal(text) {
  return text.replaceAll("\r\n", "\n").replace(CONTROL, (one) => {
    const code = one.charCodeAt(0);
    return code < 256
      ? `\\x${code.toString(16).padStart(2, "0")}`
      : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/* Return a text on one line of at most `most` characters. */
function brief(text, most) {
  const flat = reveal(text.slice(0, 4 * most).replace(/\s+/g, " ").trim());
  return flat.length > most || text.length > 4 * most ? `${flat.slice(0, most - 1)}…` : flat;
}

/* Return a new element. Attributes that begin with "on" are listeners; null and false leave an
   attribute or a child out. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((one) => one !== null && one !== undefined));
  return element;
}

/* Return the data of an element, which is base64 of compressed JSON. */
async function unpack(id) {
  const packed = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(packed)
    : Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/* Return a number with its thousands separated. */
function count(n) {
  return n.toLocaleString("en-US");
}

/* Return seconds as the terminal shows them. */
function seconds(value) {
  return value >= 1 ? `${Number(value.toPrecision(3))} s` : `${Number((1000 * value).toPrecision(3))} ms`;
}
