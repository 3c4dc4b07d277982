// Tables that can be sorted by any column. The order is part of the address.

import {h} from "./dom.js";

/**
 * Columns are {name, title, value(row), cell(row), number}. `sort` is "name" or "-name"; `sorted(text)` is called when another one is chosen.
 */
export function table({caption, columns, rows, sort, sorted, maxRows = 200, row: properties = () => ({})}) {
  const by = sort ? columns.find((column) => column.name === sort.replace(/^-/, "")) : undefined;
  const falling = sort?.startsWith("-");
  const ordered = by ? [...rows].sort((one, other) => compared(by.value(one), by.value(other), falling)) : rows;
  const heads = columns.map((column) => {
    const mine = by === column;
    const next = mine && falling ? column.name : mine ? `-${column.name}` : column.number ? `-${column.name}` : column.name;
    const inside = column.value && sorted
      ? h("button", {type: "button", onclick: () => sorted(next)}, column.title, h("span.arrow", {"aria-hidden": "true"}, mine ? (falling ? " ↓" : " ↑") : ""))
      : column.title;
    return h("th", {scope: "col", class: column.number ? "n" : "", "aria-sort": mine ? (falling ? "descending" : "ascending") : null}, inside);
  });
  const body = h("tbody", {}, ordered.slice(0, maxRows).map((row) => line(columns, row, properties)));
  const whole = h("div.scroll", {tabindex: "0", role: "region", "aria-label": `Table: ${caption}`},
    h("table", {}, h("caption.unseen", {}, caption), h("thead", {}, h("tr", {}, heads)), body));
  if (ordered.length <= maxRows) return whole;
  const more = h("button.more", {type: "button", onclick: () => {
    body.append(...ordered.slice(maxRows).map((row) => line(columns, row, properties)));
    more.remove();
  }}, `Show all ${ordered.length.toLocaleString("en-US")}`);
  return h("div", {}, whole, more);
}

function line(columns, row, properties) {
  return h("tr", properties(row), columns.map((column, place) =>
    h(place ? "td" : "th", {class: column.number ? "n" : "", scope: place ? null : "row"}, (column.cell ?? column.value)(row))));
}

/** Missing values come last in both directions. */
function compared(one, other, falling) {
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  const order = typeof one === "string" ? one.localeCompare(other, "en", {numeric: true}) : one - other;
  return falling ? -order : order;
}
