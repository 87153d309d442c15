/* The keyboard: / searches, j and k move, Enter opens, Escape closes, ? shows this list. */

const KEYS = [
  ["/", "search"],
  ["j, k", "next and previous sample"],
  ["Enter", "open the sample"],
  ["Escape", "close, or leave the search"],
  ["?", "show these keys"],
];

function listenToKeys(controls, table, view) {
  const help = make("dialog", { class: "help", "aria-labelledby": "help-title" },
    make("h2", { id: "help-title" }, "Keys"),
    make("dl", { class: "facts" }, KEYS.map(([key, what]) => make("div", { class: "fact" }, make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)))),
    make("button", { type: "button", class: "quiet", onclick: () => help.close() }, "Close"),
  );
  document.body.append(help);
  const opener = make("button", { type: "button", class: "quiet", "aria-label": "Keys", title: "Keys (?)", onclick: () => help.showModal() }, "?");
  document.getElementById("theme").before(opener);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (typing) {
      if (event.key === "Escape" && event.target === controls.search) event.target.blur();
      return;
    }
    const act = {
      "/": () => controls.search.focus(),
      "?": () => (help.open ? help.close() : help.showModal()),
      j: () => (view.element.open ? view.step(1) : table.move(1)),
      k: () => (view.element.open ? view.step(-1) : table.move(-1)),
    }[event.key];
    if (act && !(help.open && event.key !== "?") && !(view.element.open && event.key === "/")) {
      event.preventDefault();
      act();
    } else if (event.key === "Enter" && event.target === table.frame) {
      event.preventDefault();
      table.openActive();
    }
  });
}
