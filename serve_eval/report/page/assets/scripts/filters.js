/* The choice of samples: kept in the fragment of the address, so that a link shows the same. */

const SIDES = [RIGHT, "wrong", "missing"];

class Choice {
  constructor(samples) {
    this.samples = samples;
    this.read();
  }

  /* Take the choice from the address. */
  read() {
    this.params = new URLSearchParams(location.hash.slice(1));
  }

  get(name) {
    return this.params.get(name) ?? "";
  }

  list(name) {
    return this.get(name).split(",").filter(Boolean);
  }

  /* Change parts of the choice, and the address with it. An empty value takes a part away. */
  set(changes, { replace = false } = {}) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === "" || value === null) this.params.delete(name);
      else this.params.set(name, value);
    }
    const hash = `#${this.params}`;
    if (replace) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
    this.changed();
  }

  changed() {
    dispatchEvent(new CustomEvent("choice"));
  }

  clear() {
    const kept = this.get("sample");
    this.params = new URLSearchParams(kept ? { sample: kept } : {});
    this.set({});
  }

  get active() {
    return [...this.params.keys()].some((name) => !["sample", "sort"].includes(name));
  }

  /* Return the rows that are chosen, in their order. */
  rows() {
    const tests = this._tests();
    const found = this.samples.data.order.filter((row) => tests.every((test) => test(row)));
    return this._sort(found);
  }

  _tests() {
    const { samples } = this;
    const { data } = samples;
    const tests = [];
    const task = this.get("task");
    if (task && data.tasks.some((one) => one.name === task))
      tests.push((row) => samples.task(row).name === task);
    const outcomes = new Set(this.list("outcome"));
    if (outcomes.size)
      tests.push((row) =>
        samples
          .judged(row)
          .some(
            (i) =>
              outcomes.has(samples.answer("outcome", i)) ||
              (outcomes.has("cut off") && data.answers.cut[i]),
          ),
      );
    const flip = { fell: [FELL], rose: [ROSE], changed: [FELL, ROSE], same: [SAME] }[this.get("flip")];
    if (flip) tests.push((row) => flip.includes(data.flip[row]));
    for (const [arm, name] of ["a", "b"].entries())
      if (samples.paired && SIDES.includes(this.get(name)))
        tests.push((row) => samples.side(row, arm) === this.get(name));
    for (const field of data.fields) {
      const wanted = this.params.get(`f.${field.name}`);
      if (wanted !== null) tests.push((row) => samples.text(field, row) === wanted);
    }
    const worker = this.get("worker");
    if (worker)
      tests.push((row) => samples.answers(row).some((i) => samples.answer("worker", i) === worker));
    this._addTimes(tests);
    const needle = this.get("q");
    if (needle) tests.push(samples.search(needle));
    return tests;
  }

  /* Add the tests of the seconds after the first request. */
  _addTimes(tests) {
    const { samples } = this;
    for (const [name, keeps] of [
      ["from", (after, end) => after >= end],
      ["to", (after, end) => after <= end],
    ]) {
      const bound = parseFloat(this.get(name));
      if (Number.isFinite(bound))
        tests.push((row) =>
          samples.answers(row).some((i) => {
            const after = samples.after(i);
            return after !== null && keeps(after, bound);
          }),
        );
    }
  }

  _sort(rows) {
    const sort = this.get("sort");
    const key = SORT_KEYS[sort.replace(/^-/, "")];
    if (!key) return rows;
    const sign = sort.startsWith("-") ? -1 : 1;
    const keys = new Map(rows.map((row) => [row, key(this.samples, row)]));
    return rows.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return x < y ? -sign : x > y ? sign : 0;
    });
  }
}

/* The values by which samples are sorted; null comes last. */
const SORT_KEYS = {
  outcome: (samples, row) => samples.rank[row],
  sample: (samples, row) => row,
  expected: (samples, row) => samples.wanted(row),
  answered: (samples, row) => samples.answered(samples.judged(row)[0]),
  score: (samples, row) => samples.value(row),
  change: (samples, row) => [null, 0, -1, 1][samples.data.flip[row]],
  latency: (samples, row) => samples.mean(row, "latency"),
  start: (samples, row) => samples.mean(row, "start"),
  tokens: (samples, row) => {
    const counts = samples.judged(row).map((i) => samples.data.answers.tokens[i]?.[1] ?? null);
    return counts.includes(null) ? null : counts.reduce((sum, one) => sum + one, 0);
  },
};
