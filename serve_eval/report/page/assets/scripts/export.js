/* Save the chosen samples as CSV or JSONL. */

function* listRecords(samples, rows) {
  for (const row of rows) {
    for (const i of samples.answers(row)) {
      const say = (name) => samples.answer(name, i);
      const tokens = samples.data.answers.tokens[i];
      yield {
        task: samples.task(row).name,
        id: samples.data.id[row],
        ...(samples.paired ? { arm: samples.data.arms[samples.data.answers.arm[i]] } : {}),
        outcome: say("outcome"),
        score: samples.number("value", i),
        cut_off: Boolean(samples.data.answers.cut[i]),
        expected: samples.text(samples.data.expected, row),
        extracted: say("extracted"),
        answer: say("text"),
        reasoning: say("reasoning"),
        failure: say("failure"),
        finish_reason: say("finish"),
        latency_s: samples.number("latency", i),
        prompt_tokens: tokens?.[0] ?? null,
        completion_tokens: tokens?.[1] ?? null,
        worker: say("worker"),
        prompt: samples.hidden.has(row) ? null : samples.data.prompts.turns[row] ? JSON.stringify(samples.turns(row)) : samples.prompt(row),
        ...Object.fromEntries(samples.data.fields.map((field) => [`field.${field.name}`, samples.text(field, row)])),
      };
    }
  }
}

/* Return a cell of CSV. A text that a spreadsheet would compute begins with an apostrophe. */
function csvCell(value) {
  if (value === null) return "";
  if (typeof value !== "string") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) && !/^[+-]?[0-9.]+$/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function toCsv(samples, rows) {
  const lines = [];
  for (const record of listRecords(samples, rows)) {
    if (!lines.length) lines.push(Object.keys(record).map(csvCell).join(","));
    lines.push(Object.values(record).map(csvCell).join(","));
  }
  return `${lines.join("\r\n")}\r\n`;
}

function toJsonl(samples, rows) {
  return Array.from(listRecords(samples, rows), (record) => `${JSON.stringify(record)}\n`).join("");
}

function makeExport(samples, choice) {
  const save = (name, kind, write) => {
    const address = URL.createObjectURL(new Blob([write(samples, choice.rows())], { type: kind }));
    const link = make("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  };
  const button = (label, ...rest) =>
    make("button", { type: "button", class: "quiet", title: "Save the samples that are shown", onclick: () => save(...rest) }, label);
  return make("span", { class: "export" },
    button("Save CSV", "samples.csv", "text/csv;charset=utf-8", toCsv),
    button("Save JSONL", "samples.jsonl", "application/x-ndjson", toJsonl),
  );
}
