/* The controls above the samples: search, outcomes, flips, fields, worker, time. */

const FLIPS = { fell: "score fell", rose: "score rose", changed: "score changed", same: "same score" };

class Controls {
  constructor(samples, choice) {
    this.samples = samples;
    this.choice = choice;
    this.inputs = [];
    this.search = make("input", {
      type: "search", placeholder: "Search all texts  ( / )", "aria-label": "Search all texts",
      autocomplete: "off", spellcheck: "false", oninput: () => this._searchSoon(),
    });
    this.status = make("p", { class: "status", role: "status" });
    this.reset = make("button", { type: "button", class: "quiet", onclick: () => choice.clear() }, "Show all");
    this.element = make("div", { class: "controls", role: "search", "aria-label": "Choose samples" },
      make("div", { class: "control-line" }, this.search, this._makeSelects(), this.reset),
      this._makeOutcomes(),
      make("div", { class: "control-line" }, this.status, makeExport(samples, choice)),
    );
  }

  _searchSoon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.choice.set({ q: this.search.value }, { replace: true }), 120);
  }

  /* Return a button for each outcome, with the number of its samples. */
  _makeOutcomes() {
    const { samples } = this;
    const counts = new Map();
    for (let row = 0; row < samples.n; row++) {
      const found = new Set(samples.outcomes(row));
      if (samples.judged(row).some((i) => samples.data.answers.cut[i])) found.add("cut off");
      for (const outcome of found) counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
    }
    const names = [...counts.keys()].sort((a, b) => (a === RIGHT) - (b === RIGHT) || counts.get(b) - counts.get(a));
    this.outcomes = names.map((name) =>
      make("button", { type: "button", class: `chip ${stateOf(name)}`, "data-outcome": name, onclick: () => this._toggle(name) },
        `${name} `, make("span", { class: "chip-count" }, count(counts.get(name)))),
    );
    return make("div", { class: "chips", role: "group", "aria-label": "Outcomes" }, this.outcomes);
  }

  _toggle(name) {
    const chosen = new Set(this.choice.list("outcome"));
    if (!chosen.delete(name)) chosen.add(name);
    this.choice.set({ outcome: [...chosen].join(",") });
  }

  _makeSelects() {
    const { samples } = this;
    const { data } = samples;
    const made = [];
    if (data.tasks.length > 1) made.push(this._select("task", "task", data.tasks.map((one) => one.name)));
    if (data.flip.some((one) => one))
      made.push(this._select("flip", samples.paired ? "A to B" : "against the reference", Object.keys(FLIPS), (one) => FLIPS[one]));
    if (samples.paired)
      for (const name of ["a", "b"]) made.push(this._select(name, name.toUpperCase(), SIDES));
    const workers = data.answers.worker?.values ?? [];
    if (workers.length > 1) made.push(this._select("worker", "worker", workers));
    const fields = data.fields.filter((one) => one.choose);
    const more = [];
    for (const [i, field] of fields.entries())
      (i < 2 ? made : more).push(
        this._select(`f.${field.name}`, field.name, [...field.values].sort((a, b) => a.localeCompare(b, "en", { numeric: true }))),
      );
    if (samples.origins.some(Number.isFinite)) more.push(this._seconds("from"), this._seconds("to"));
    if (more.length) {
      const rest = make("details", { class: "more" }, make("summary", {}, "More filters"), make("div", { class: "control-line" }, more));
      made.push(rest);
    }
    return made;
  }

  _select(name, label, values, say = reveal) {
    const field = make("select", { onchange: () => this.choice.set({ [name]: field.value }) },
      make("option", { value: "" }, "any"),
      values.map((one) => make("option", { value: one }, brief(say(one), 60))),
    );
    this.inputs.push([name, field]);
    return make("label", {}, make("span", {}, reveal(label)), field);
  }

  _seconds(name) {
    const field = make("input", { type: "number", min: "0", step: "any", class: "seconds",
      onchange: () => this.choice.set({ [name]: field.value }) });
    this.inputs.push([name, field]);
    return make("label", {}, make("span", {}, `${name} second`), field);
  }

  /* Show the choice in the controls, and how many rows it has. */
  show(rows) {
    const { choice, samples } = this;
    if (document.activeElement !== this.search) this.search.value = choice.get("q");
    for (const [name, field] of this.inputs) field.value = choice.get(name);
    const chosen = new Set(choice.list("outcome"));
    for (const chip of this.outcomes) chip.setAttribute("aria-pressed", String(chosen.has(chip.dataset.outcome)));
    const all = rows === samples.n;
    const noun = samples.n === 1 ? "sample" : "samples";
    this.status.textContent = all ? `${count(samples.n)} ${noun}` : `${count(rows)} of ${count(samples.n)} ${noun}`;
    this.reset.hidden = !choice.active;
  }
}

/* Return the class of an outcome's colour. */
function stateOf(outcome) {
  if (outcome === RIGHT) return "state-pass";
  return outcome === "partly right" || outcome === "cut off" ? "state-warn" : "state-fail";
}
