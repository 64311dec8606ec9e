const MOST = 100; // listed texts

const isInside = (row, { fields, values }) =>
  fields.every(({ field }, i) => row[field] >= Math.min(...values[i]) && row[field] <= Math.max(...values[i]));

function item({ id, text, group, change }) {
  const element = document.createElement("li");
  const rank = (change ?? null) === null ? "" : `rank ${change > 0 ? "+" : ""}${change}`;
  element.textContent = `${text} (${[id, group, rank].filter(Boolean).join(", ")})`;
  return element;
}

for (const drawing of document.querySelectorAll("#map .drawing")) {
  const count = document.getElementById(`${drawing.id}-count`);
  const list = document.getElementById(`${drawing.id}-texts`);
  report.onDraw(drawing.id, (view) => {
    const show = () => {
      const areas = view.data("brush_store");
      const rows = areas.length ? view.data("points").filter((row) => areas.some((area) => isInside(row, area))) : [];
      const more = rows.length > MOST ? `, the first ${MOST} are listed` : "";
      count.textContent = areas.length ? `${rows.length} texts are selected${more}.` : "";
      list.replaceChildren(...rows.slice(0, MOST).map(item));
    };
    view.addDataListener("brush_store", show);
    show();
  });
}
