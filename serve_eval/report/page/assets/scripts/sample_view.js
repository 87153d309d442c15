/* One sample in full: what was asked, answered, extracted and expected. */

/* Characters of a text that are shown at first. */
const SHOWN_TEXT = 20_000;

class SampleView {
  constructor(samples, choice) {
    this.samples = samples;
    this.choice = choice;
    this.row = null;
    this.title = make("h2", { id: "sample-title" });
    this.body = make("div", { class: "sample-body", tabindex: "-1" });
    this.step = (by) => null;
    const button = (label, text, onclick) => make("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick }, text);
    this.element = make("dialog", { class: "drawer", "aria-labelledby": "sample-title", onclose: () => this._closed() },
      make("header", { class: "drawer-head" }, this.title,
        make("div", { class: "drawer-buttons" },
          button("Previous sample (k)", "↑", () => this.step(-1)),
          button("Next sample (j)", "↓", () => this.step(1)),
          button("Copy a link to this sample", "Link", (event) => copy(location.href, event.currentTarget)),
          button("Close (Escape)", "✕", () => this.element.close()))),
      this.body,
    );
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) this.element.close();
    });
  }

  _closed() {
    this.row = null;
    if (this.choice.get("sample")) this.choice.set({ sample: "" });
  }

  /* Show the sample that the address names, or none. */
  showChosen() {
    const row = this.samples.places.get(this.choice.get("sample"));
    if (row === undefined) {
      if (this.element.open) this.element.close();
    } else if (row !== this.row) this._show(row);
  }

  _show(row) {
    const { samples } = this;
    this.row = row;
    const arms = samples.paired ? samples.data.arms.map((label, arm) => [label, arm]) : [["", null]];
    const states = arms.flatMap(([label, arm]) =>
      samples.tally(samples.outcomes(row, arm)).map(([said, n], _, every) =>
        make("span", { class: `outcome ${stateOf(said)}` },
          `${label} ${said}${n > 1 || every.length > 1 ? ` ×${n}` : ""}`.trim())));
    this.title.replaceChildren(...states, ` ${reveal(samples.data.id[row])}`);
    const asked = this._prompt(row);
    this.body.replaceChildren(
      asked,
      ...(samples.paired ? this._pair(row) : this._single(row)),
      this._facts(row),
      ...this._rest(row),
    );
    if (!this.element.open) this.element.showModal();
    this.body.scrollTop = 0;
    const turns = asked.querySelector(".asked");
    if (turns) turns.scrollTop = turns.scrollHeight; // the question stands at the end
    this.body.focus({ preventScroll: true });
  }

  _facts(row) {
    const { samples } = this;
    const { data } = samples;
    const facts = [["task", samples.task(row).name]];
    for (const field of data.fields) {
      const said = samples.text(field, row);
      if (said !== null) facts.push([field.name, said]);
    }
    const before = data.before?.[row];
    if (before) facts.push([before.length > 1 ? "reference's scores" : "reference's score", before.map((one) => (one === null ? "-" : show(one))).join(", ")]);
    if (data.flip[row]) facts.push(["change", ["", "same score", "score fell", "score rose"][data.flip[row]]]);
    const repeats = samples.judged(row);
    if (repeats.length > 1) {
      const said = samples.tally(repeats.map((i) => samples.answered(i) || "nothing readable"));
      facts.push(["answers", said.map(([text, n]) => `${brief(text, 60)} ×${n}`).join(", ")]);
    }
    return part("Sample", listFacts(facts));
  }

  _single(row) {
    const answers = this.samples.answers(row);
    return answers.map((i, number) => this._answer(i, answers.length > 1 ? `Answer ${number + 1} of ${answers.length}` : "Answer"));
  }

  /* Return both arms side by side, and what differs between their first answers. */
  _pair(row) {
    const { samples } = this;
    const arms = samples.data.arms.map((label, arm) => [label, samples.answers(row, arm)]);
    const sides = arms.map(([label, answers]) =>
      make("div", { class: "side" },
        answers.length
          ? answers.map((i, number) => this._answer(i, `${label}${answers.length > 1 ? `, answer ${number + 1}` : ""}`))
          : make("section", { class: "part" }, make("h3", {}, label), make("p", { class: "note" }, "Not asked."))));
    return [make("div", { class: "sides" }, sides), this._differences(...arms.map(([, answers]) => answers[0]))];
  }

  _differences(a, b) {
    const [before, after] = [a, b].map((i) => (i === undefined ? null : this.samples.answer("text", i)));
    if (before === null || after === null) return null;
    if (before === after) return part("Difference", make("p", { class: "note" }, "Both answers are the same text."));
    const pieces = compareWords(before, after).map(([kind, text]) =>
      kind === "same" ? reveal(text) : make(kind === "a" ? "del" : "ins", {}, reveal(text)));
    return part("Difference, A to B", make("p", { class: "text", dir: "auto" }, pieces));
  }

  _answer(i, label) {
    const { samples } = this;
    const say = (name) => samples.answer(name, i);
    const { answers } = samples.data;
    const inner = [];
    const extracted = say("extracted");
    const text = say("text");
    if (text) inner.push(markedText(text, extracted));
    if (say("calls")) inner.push(make("h4", {}, "Calls"), longText(say("calls")));
    if (say("refusal")) inner.push(make("h4", {}, "Refusal"), longText(say("refusal")));
    if (answers.choices[i])
      inner.push(listFacts(answers.choices[i].map(([value, greedy], n) => [`choice ${n + 1}`, `log-probability ${value}${greedy ? ", the likeliest text" : ""}`])));
    const value = samples.number("value", i);
    const facts = [];
    const expected = samples.text(samples.data.expected, answers.row[i]);
    if (expected !== null) facts.push(["expected", expected]);
    if (extracted !== null) facts.push(["extracted", extracted]);
    else if (value !== null && !samples.hidden.has(answers.row[i])) facts.push(["extracted", "nothing"]);
    if (value !== null) {
      const parts = Object.entries(answers.parts[i] ?? {}).map(([name, one]) => `${name} ${show(one)}`);
      facts.push(["score", [show(value), ...parts, ...(say("mode") ? [say("mode")] : [])].join(", ")]);
    }
    facts.push(["outcome", say("outcome") + (answers.cut[i] ? ", cut off" : "")]);
    if (say("failure")) facts.push(["failure", say("failure")]);
    facts.push(...this._timing(i));
    inner.push(listFacts(facts));
    if (say("reasoning"))
      inner.push(make("details", {}, make("summary", {}, `Reasoning (${count(say("reasoning").length)} characters)`), longText(say("reasoning"))));
    if (answers.unlikely[i])
      inner.push(make("details", {}, make("summary", {}, "Tokens of the lowest probability"),
        listFacts(answers.unlikely[i].map(([token, value, place]) => [`token ${place}`, `${JSON.stringify(token)}  ${value}`]))));
    return part(label, inner);
  }

  _timing(i) {
    const { samples } = this;
    const [latency, ttft, tpot, start] = ["latency", "ttft", "tpot", "start"].map((name) => samples.number(name, i));
    const tokens = samples.data.answers.tokens[i];
    const facts = [];
    const end = [];
    if (samples.answer("finish", i)) end.push(`finish reason ${samples.answer("finish", i)}`);
    if (tokens && (tokens[0] || tokens[1])) end.push(`${tokens[0]} prompt and ${tokens[1]} answer tokens`);
    if (tokens?.[2]) end.push(`${tokens[2]} of the prompt cached`);
    if (end.length) facts.push(["end", end.join("; ")]);
    const times = [];
    if (latency !== null) times.push(`latency ${seconds(latency)}`);
    if (ttft !== null) times.push(`first token after ${seconds(ttft)}`);
    if (tpot !== null) times.push(`${seconds(tpot)} per token`);
    if (start !== null) times.push(`sent ${new Date(1000 * start).toISOString().slice(0, 19).replace("T", " ")} UTC, ${samples.after(i).toFixed(1)} s after the first`);
    if (times.length) facts.push(["time", times.join("; ")]);
    if (samples.answer("worker", i)) facts.push(["worker", samples.answer("worker", i)]);
    const attempts = samples.data.answers.attempts[i];
    if (attempts) facts.push(["attempts", attempts.join("\n")]);
    return facts;
  }

  _prompt(row) {
    const { samples } = this;
    if (samples.hidden.has(row)) return part("Prompt", make("p", { class: "note" }, "Not shown: part of a hold-out set."));
    const turns = samples.turns(row);
    if (!turns.length) return part("Prompt", make("p", { class: "note" }, "Not kept in this run folder."));
    const inner = turns.map(({ role, content }) =>
      make("div", { class: "turn" }, role === null ? null : make("h4", {}, reveal(role)), longText(content)));
    const choices = (samples.data.choices[row] ?? []).map((one, n) => [`choice ${n + 1}`, one]);
    return part("Prompt", [make("div", { class: "asked", tabindex: "0", role: "region", "aria-label": "Prompt" }, inner), ...showMedia(samples.data.media, row), choices.length ? listFacts(choices) : null]);
  }

  _rest(row) {
    const line = curlLine(this.samples, row);
    if (!line) return [];
    const button = make("button", { type: "button", class: "quiet", onclick: (event) => copy(line, event.currentTarget) }, "Copy");
    const inner = make("pre", { class: "code", tabindex: "0", "aria-label": "Command" }, line.length > 2000 ? `${line.slice(0, 2000)}…` : line);
    return [make("details", { class: "part" }, make("summary", {}, "Ask this again with curl"), button, inner)];
  }
}

/* Return the media of a prompt: images, and links to other files of the run folder. */
function showMedia({ rows, images }, row) {
  return (rows[row] ?? []).map(([what, key, link]) =>
    make("figure", { class: "medium" },
      key ? make("img", { src: images[key], alt: what }) : null,
      make("figcaption", {}, link ? make("a", { href: link }, reveal(what)) : reveal(what))));
}

function part(title, ...inner) {
  return make("section", { class: "part" }, make("h3", {}, reveal(title)), ...inner);
}

function listFacts(facts) {
  return make("dl", { class: "facts" },
    facts.map(([label, text]) => make("div", { class: "fact" }, make("dt", {}, reveal(label)), make("dd", { dir: "auto" }, clipText(text)))));
}

/* Return a text that keeps its lines, at most SHOWN_TEXT characters of it. */
function clipText(text) {
  return text.length > SHOWN_TEXT ? `${reveal(text.slice(0, SHOWN_TEXT))} …` : reveal(text);
}

/* Return a text with a button for the rest, if it is long. */
function longText(text, inner = null) {
  const said = make("p", { class: "text", dir: "auto" }, inner ?? clipText(text));
  if (text.length <= SHOWN_TEXT) return said;
  const more = make("button", { type: "button", class: "quiet", onclick: () => {
    said.replaceChildren(reveal(text));
    more.remove();
  } }, `Show all ${count(text.length)} characters`);
  return make("div", {}, said, more);
}

/* Return an answer with the extracted part marked. */
function markedText(text, extracted) {
  if (text.length > SHOWN_TEXT) return longText(text);
  const shown = reveal(text);
  const place = findPlace(shown, reveal(extracted ?? ""));
  if (place === null) return longText(text);
  return longText(text, [shown.slice(0, place[0]), make("mark", {}, shown.slice(...place)), shown.slice(place[1])]);
}

/* Return the command that sends a prompt again; "" if it is not known. The key is a variable. */
function curlLine(samples, row) {
  const task = samples.task(row);
  const body = samples.data.bodies[row] ?? task.body;
  const whole = samples.prompt(row);
  if (!body || !task.url || whole === null || samples.cutPrompts.has(row) || samples.hidden.has(row)) return "";
  const chat = samples.data.prompts.turns[row] !== null;
  const prompt = chat ? { messages: samples.turns(row) } : { prompt: whole };
  const { model, ...rest } = body;
  const json = JSON.stringify({ model, ...prompt, ...rest });
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const address = quote(task.url + (chat ? "/chat/completions" : "/completions"));
  const key = task.key ? ` -H "Authorization: Bearer $${task.key}"` : "";
  return `curl -sS ${address} -H 'Content-Type: application/json'${key} -d ${quote(json)}`;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { class: "hidden-text", "aria-hidden": "true" });
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1200);
}
