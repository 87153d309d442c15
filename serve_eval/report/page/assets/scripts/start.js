/* Show the samples of the page. */

async function startSamples() {
  const place = document.getElementById("samples");
  const samples = new Samples(await unpack("samples-data"));
  const choice = new Choice(samples);
  const controls = new Controls(samples, choice);
  const view = new SampleView(samples, choice);
  const table = new SampleTable(samples, choice, (row) => choice.set({ sample: samples.name(row) }));
  view.step = (by) => {
    const now = table.rows.indexOf(view.row);
    const next = table.rows[Math.min(table.rows.length - 1, Math.max(0, now + by))];
    if (next !== undefined && next !== view.row) choice.set({ sample: samples.name(next) }, { replace: true });
  };
  let shown = null;
  const update = () => {
    const params = new URLSearchParams(choice.params);
    params.delete("sample");
    if (String(params) !== shown) {
      const rows = choice.rows();
      table.show(rows);
      controls.show(rows.length);
      shown = String(params);
    }
    view.showChosen();
  };
  addEventListener("choice", update);
  addEventListener("popstate", () => {
    choice.read();
    update();
  });
  place.replaceChildren(...listNotes(samples), controls.element, table.element, view.element);
  listenToKeys(controls, table, view);
  update();
  place.dataset.ready = "true";
}

/* Return what readers must know of the texts. */
function listNotes(samples) {
  const notes = [];
  const { data } = samples;
  if (data.shortened)
    notes.push(`${count(data.shortened)} long texts are shortened in the middle to keep this page small. The run folder has them whole.`);
  if (samples.unkept.size === samples.n) notes.push("The prompts were not kept in this run folder.");
  if (samples.hidden.size) notes.push(`The texts of ${count(samples.hidden.size)} hold-out samples are not shown.`);
  return notes.map((text) => make("p", { class: "note" }, text));
}

startSamples().catch((error) => {
  document.getElementById("samples").replaceChildren(make("p", { class: "note" }, `The samples cannot be shown: ${reveal(String(error))}`));
  throw error;
});
