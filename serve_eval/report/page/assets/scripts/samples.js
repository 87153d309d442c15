/* The samples of the page: columns, and what belongs to a row. A row is a prompt. */

const [SAME, FELL, ROSE] = [1, 2, 3];
const RIGHT = "right";
/* Outcomes without an answer that has a score. */
const MISSING = new Set(["failed", "not scored"]);

class Samples {
  constructor(data) {
    this.data = data;
    this.n = data.id.length;
    this.used = new Int32Array(data.prompts.parts.length);
    for (const parts of data.prompts.rows) for (const part of new Set(parts ?? [])) this.used[part]++;
    this.paired = data.arms.length > 1;
    this.start = new Int32Array(this.n + 1);
    for (const row of data.answers.row) this.start[row + 1]++;
    for (let row = 0; row < this.n; row++) this.start[row + 1] += this.start[row];
    this.rank = new Int32Array(this.n);
    data.order.forEach((row, place) => (this.rank[row] = place));
    this.hidden = new Set(data.hidden);
    this.unkept = new Set(data.unkept);
    this.cutPrompts = new Set(data.cut_prompts);
    this.origins = data.arms.map(() => Infinity);
    data.answers.start?.forEach((start, answer) => {
      const arm = data.answers.arm[answer];
      if (start !== null) this.origins[arm] = Math.min(this.origins[arm], start);
    });
    this.places = new Map(data.id.map((id, row) => [`${this.task(row).name}/${id}`, row]));
  }

  task(row) {
    return this.data.tasks[this.data.task[row]];
  }

  name(row) {
    return `${this.task(row).name}/${this.data.id[row]}`;
  }

  /* Return the text of a coded column, or null. */
  text(column, place) {
    return column && column.codes[place] >= 0 ? column.values[column.codes[place]] : null;
  }

  answer(name, answer) {
    return this.text(this.data.answers[name], answer);
  }

  number(name, answer) {
    return this.data.answers[name]?.[answer] ?? null;
  }

  /* Return the answers of a row in an arm, or in all arms. */
  answers(row, arm = null) {
    const found = [];
    for (let i = this.start[row]; i < this.start[row + 1]; i++)
      if (arm === null || this.data.answers.arm[i] === arm) found.push(i);
    return found;
  }

  /* Return the answers of the arm that is judged. */
  judged(row) {
    return this.paired ? this.answers(row, this.data.arms.length - 1) : this.answers(row);
  }

  prompt(row) {
    return this._join(this.data.prompts.rows[row]);
  }

  /* Return the paragraphs of a prompt that no other has, or its last one; turns begin a line. */
  question(row) {
    const parts = this.data.prompts.rows[row];
    if (parts === null) return null;
    const own = parts.filter((part) => this.used[part] === 1);
    if (own.length === parts.length) return this.turns(row).map((turn) => turn.content).join("\n");
    return this._join(own.length ? own : parts.slice(-1));
  }

  _join(parts) {
    return parts && parts.map((part) => this.data.prompts.parts[part]).join("");
  }

  /* Return the turns of a prompt; a text is one turn without a role. */
  turns(row) {
    const whole = this.prompt(row);
    const turns = this.data.prompts.turns[row];
    if (whole === null) return [];
    if (turns === null) return [{ role: null, content: whole }];
    let place = 0;
    return turns.map(([role, length]) => {
      place += length;
      return { role, content: whole.slice(place - length, place) };
    });
  }

  /* Return the seconds from the first request of an arm to that of an answer, or null. */
  after(answer) {
    const start = this.number("start", answer);
    return start === null ? null : start - this.origins[this.data.answers.arm[answer]];
  }

  /* Return the mean score of the answers to a row. */
  value(row, arm = null) {
    const values = (arm === null ? this.judged(row) : this.answers(row, arm))
      .map((i) => this.number("value", i))
      .filter((one) => one !== null);
    return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  }

  mean(row, name) {
    const values = this.judged(row)
      .map((i) => this.number(name, i))
      .filter((one) => one !== null);
    return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  }

  /* Return how often each of some texts came, the most frequent first. */
  tally(texts) {
    const counts = new Map();
    for (const text of texts) counts.set(text, (counts.get(text) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  }

  outcomes(row, arm = null) {
    const answers = arm === null ? this.judged(row) : this.answers(row, arm);
    return answers.map((i) => this.answer("outcome", i));
  }

  /* Return right, wrong or missing for the first answer of an arm: a cell of the table of both. */
  side(row, arm) {
    const outcome = this.outcomes(row, arm)[0] ?? "failed";
    return outcome === RIGHT ? RIGHT : MISSING.has(outcome) ? "missing" : "wrong";
  }

  /* Return what was answered, on one line. */
  answered(answer) {
    if (answer === undefined) return "";
    return this.answer("extracted", answer) ?? this.answer("failure", answer) ?? "";
  }

  /* Return the expected answer, without the reasoning that a target may also hold. */
  wanted(row) {
    return this.text(this.data.wanted, row) ?? this.text(this.data.expected, row);
  }

  /* Return a function that finds a text in any of a row's texts, in any letter case. */
  search(needle) {
    const pattern = new RegExp(needle.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "iu");
    const said = (column) => column && column.values.map((one) => pattern.test(one));
    const names = ["extracted", "text", "reasoning", "refusal", "calls", "failure"];
    const inAnswers = names
      .map((name) => [this.data.answers[name], said(this.data.answers[name])])
      .filter(([column]) => column);
    const inExpected = said(this.data.expected);
    const inParts = this.data.prompts.parts.map((one) => pattern.test(one));
    return (row) => {
      if (this.hidden.has(row)) return pattern.test(this.data.id[row]);
      const expected = this.data.expected?.codes[row] ?? -1;
      if (pattern.test(this.data.id[row]) || (expected >= 0 && inExpected[expected])) return true;
      if (this._inPrompt(row, pattern, needle, inParts)) return true;
      if (this.data.choices[row]?.some((one) => pattern.test(one))) return true;
      for (let i = this.start[row]; i < this.start[row + 1]; i++)
        for (const [column, found] of inAnswers)
          if (column.codes[i] >= 0 && found[column.codes[i]]) return true;
      return false;
    };
  }

  /* Return whether a prompt matches. Only a text of two lines can lie in two paragraphs. */
  _inPrompt(row, pattern, needle, inParts) {
    const parts = this.data.prompts.rows[row];
    if (parts === null) return false;
    if (parts.some((part) => inParts[part])) return true;
    return needle.includes("\n") && pattern.test(this._join(parts));
  }
}
