/* Sort a table by the column whose heading is clicked, and mark those wider than the screen. */

{
  const keyOf = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.order === undefined ? cell.textContent.trim() : Number(cell.dataset.order);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });

  for (const table of document.querySelectorAll("table.data")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, place) => {
      const label = heading.textContent;
      if (!label.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      heading.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        for (const one of headings) one.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].sort((a, b) => compare(keyOf(a, place), keyOf(b, place)));
        table.tBodies[0].append(...(up ? rows : rows.reverse()));
      });
    });
  }

  for (const frame of document.querySelectorAll(".scroll")) {
    new ResizeObserver(() => {
      frame.toggleAttribute("data-wide", frame.scrollWidth > frame.clientWidth + 1);
    }).observe(frame);
  }

  // The newest marks are at the end of the row.
  for (const table of document.querySelectorAll("table.marks")) {
    table.parentElement.scrollLeft = table.scrollWidth;
  }
}
