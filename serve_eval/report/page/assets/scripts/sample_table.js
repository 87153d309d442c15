/* The table of samples. Only the rows in sight are in the document. */

const EXTRA_ROWS = 8;
/* Rows of the table on paper. */
const PRINTED_ROWS = 200;

class SampleTable {
  constructor(samples, choice, open) {
    this.samples = samples;
    this.choice = choice;
    this.open = open;
    this.rows = [];
    this.active = -1;
    this.columns = this._listColumns();
    this.headings = this.columns.map((column) => this._makeHeading(column));
    this.before = make("tr", { "aria-hidden": "true" }, make("td", {}));
    this.after = make("tr", { "aria-hidden": "true" }, make("td", {}));
    this.body = make("tbody", {});
    this.table = make("table", { class: samples.paired ? "samples paired" : "samples" },
      make("caption", { class: "hidden-text" }, "Samples, one prompt a row. Enter opens a sample."),
      make("colgroup", {}, this.columns.map((one) => make("col", { class: `col-${one.name}` }))),
      make("thead", {}, make("tr", { "aria-rowindex": "1" }, this.headings)),
      this.body,
    );
    this.frame = make("div", { class: "frame", tabindex: "0", role: "region", "aria-label": "Table of samples", onscroll: () => this._draw() }, this.table);
    this.none = make("p", { class: "note", hidden: true }, "No sample matches.");
    this.element = make("div", {}, this.frame, this.none);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-place]");
      if (!row || event.target.closest("a") || String(getSelection())) return;
      this.open(this.rows[Number(row.dataset.place)]);
    });
    new ResizeObserver(() => this._draw()).observe(this.frame);
    addEventListener("beforeprint", () => this._draw(0, PRINTED_ROWS));
    addEventListener("afterprint", () => this._draw());
  }

  _listColumns() {
    const { samples } = this;
    const { data } = samples;
    const text = (name, label, cell, wide) => ({ name, label, cell, wide });
    const number = (name, label, cell) => ({ name, label, cell, number: true });
    const answered = (row, arm) =>
      samples.tally(samples.answers(row, arm).map((i) => samples.answered(i)))
        .map(([said, n], _, every) => brief(said, 80) + (n > 1 || every.length > 1 ? ` ×${n}` : "")).join("  ");
    const arms = samples.paired ? data.arms.map((label, arm) => [label, arm]) : [["", 0]];
    const columns = [];
    for (const [label, arm] of arms)
      columns.push({ ...text(`outcome${label}`, label ? `${label}` : "outcome", (row) => this._outcome(row, arm)), sort: arm === arms.length - 1 ? "outcome" : null });
    columns.push(text("sample", "sample", (row) => this._link(row)));
    if (data.tasks.length > 1) columns.push(text("task", "task", (row) => brief(samples.task(row).name, 40)));
    const field = data.fields.find((one) => one.choose);
    if (field) columns.push(text("field", field.name, (row) => brief(samples.text(field, row) ?? "", 40)));
    if (data.prompts.rows.some((one) => one !== null))
      columns.push(text("question", "prompt", (row) => clamp(this._question(row))));
    for (const [label, arm] of arms)
      columns.push(text("answer", label ? `${label} answer` : "answer", (row) => clamp(this._answer(row, arm))));
    columns.push({ ...text("expected", "expected", (row) => brief(samples.wanted(row) ?? "", 60)), sort: "expected" });
    for (const [label, arm] of arms)
      columns.push({ ...text("answered", label ? `${label} answered` : "answered", (row) => answered(row, arm)), sort: arm === arms.length - 1 ? "answered" : null });
    if (this._graded()) columns.push({ ...number("score", "score", (row) => show(samples.value(row))), sort: "score" });
    if (data.flip.some((one) => one)) columns.push({ ...text("change", "change", (row) => ["", "same", "fell", "rose"][data.flip[row]]), sort: "change" });
    if (data.answers.latency) columns.push({ ...number("latency", "latency", (row) => { const value = samples.mean(row, "latency"); return value === null ? "" : seconds(value); }), sort: "latency" });
    if (data.answers.tokens.some((one) => one?.[1])) columns.push({ ...number("tokens", "tokens", (row) => show(SORT_KEYS.tokens(samples, row))), sort: "tokens" });
    for (const column of columns) if (column.name === "sample") column.sort = "sample";
    return columns;
  }

  /* Return whether scores are more than right and wrong. */
  _graded() {
    return this.samples.data.answers.value?.some((one) => one !== null && one !== 0 && one !== 1);
  }

  _makeHeading(column) {
    const label = reveal(column.label);
    const inner = column.sort
      ? make("button", { type: "button", onclick: () => this._sort(column.sort) }, label)
      : label;
    return make("th", { scope: "col", class: `col-${column.name}${column.number ? " number" : ""}` }, inner);
  }

  /* Sort up, then down, then in the first order again. */
  _sort(name) {
    const now = this.choice.get("sort");
    this.choice.set({ sort: now === name ? `-${name}` : now === `-${name}` ? "" : name });
  }

  _outcome(row, arm) {
    const { samples } = this;
    const answers = samples.answers(row, samples.paired ? arm : null);
    const parts = samples.tally(answers.map((i) => samples.answer("outcome", i) + (samples.data.answers.cut[i] ? ", cut off" : "")));
    return parts.map(([said, n]) =>
      make("span", { class: `outcome ${stateOf(said.replace(", cut off", ""))}` }, `${said}${answers.length > 1 ? ` ×${n}` : ""}`));
  }

  _link(row) {
    const params = new URLSearchParams(this.choice.params);
    params.set("sample", this.samples.name(row));
    return make("a", { href: `#${params}` }, brief(this.samples.data.id[row], 60));
  }

  _question(row) {
    if (this.samples.hidden.has(row)) return "hold-out";
    const text = this.samples.question(row)?.trimEnd();
    if (!text) return "";
    const last = text.slice(-4000).split(/\n\s*\n/).at(-1);
    return brief(last.length < 20 ? text.slice(-300) : last, 400);
  }

  /* Return the first answer of an arm, without the middle of a long one, or why there is none. */
  _answer(row, arm) {
    const { samples } = this;
    const [first] = samples.answers(row, samples.paired ? arm : null);
    if (first === undefined || samples.hidden.has(row)) return "";
    const text = ["text", "calls", "refusal", "failure"].map((name) => samples.answer(name, first)).find((one) => one?.trim());
    if (!text) return "";
    return text.length > 300 ? `${brief(text.slice(0, 140), 140)} … ${reveal(text.slice(-140)).replace(/\s+/g, " ")}` : brief(text, 300);
  }

  /* Show rows from the first one. */
  show(rows) {
    this.rows = rows;
    this.active = -1;
    this.frame.scrollTop = 0;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.none.hidden = rows.length > 0;
    this.frame.hidden = !rows.length;
    const sort = this.choice.get("sort");
    this.columns.forEach((column, i) => {
      const up = sort && column.sort === sort.replace("-", "");
      if (up) this.headings[i].setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
      else this.headings[i].removeAttribute("aria-sort");
    });
    this._draw();
  }

  get height() {
    return parseFloat(getComputedStyle(this.frame).getPropertyValue("--row")) || 34;
  }

  _draw(first = null, last = null) {
    const [height, n] = [this.height, this.rows.length];
    const from = first ?? Math.max(0, Math.floor(this.frame.scrollTop / height) - EXTRA_ROWS);
    const sight = Math.ceil(this.frame.clientHeight / height) + 2 * EXTRA_ROWS;
    const to = Math.min(n, last ?? from + sight);
    const focused = document.activeElement?.closest?.("tr[data-place]")?.dataset.place;
    this._space(this.before, first === null ? from * height : 0);
    this._space(this.after, last === null ? (n - to) * height : 0);
    const drawn = [];
    for (let place = from; place < to; place++) drawn.push(this._drawRow(place));
    this.body.replaceChildren(this.before, ...drawn, this.after);
    if (focused !== undefined)
      this.body.querySelector(`tr[data-place="${Number(focused)}"] a`)?.focus({ preventScroll: true });
  }

  _space(row, pixels) {
    row.hidden = !pixels;
    row.firstChild.style.height = `${pixels}px`;
  }

  _drawRow(place) {
    const row = this.rows[place];
    return make("tr", { "data-place": place, "aria-rowindex": place + 2, "aria-current": place === this.active ? "true" : null },
      this.columns.map((column) => {
        const tag = column.name === "sample" ? "th" : "td";
        const cell = make(tag, { scope: tag === "th" ? "row" : null, class: `col-${column.name}${column.number ? " number" : ""}`, dir: column.number ? null : "auto" }, column.cell(row));
        return cell;
      }));
  }

  /* Move the mark by some rows, and keep it in sight. */
  move(by) {
    if (!this.rows.length) return;
    this.mark(Math.min(this.rows.length - 1, Math.max(0, this.active + by)));
  }

  mark(place) {
    this.active = place;
    const [height, top] = [this.height, place * this.height];
    const sight = this.frame.clientHeight - 2 * height;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    else if (top > this.frame.scrollTop + sight) this.frame.scrollTop = top - sight;
    this._draw();
    this.body.querySelector(`tr[data-place="${place}"] a`)?.focus({ preventScroll: true });
  }

  /* Open the sample that is marked, or the first one. */
  openActive() {
    if (this.rows.length) this.open(this.rows[Math.max(0, this.active)]);
  }
}

/* Return a text in at most three lines. */
function clamp(text) {
  return make("div", { class: "clamp" }, text);
}

function show(value) {
  return value === null ? "" : String(Number(value.toPrecision(4)));
}
