// Small pictures of what was: a line over the area under it, drawn by attributes alone.

import { set, svg } from "./dom.js";

// A picture of `width` × `height` units; `kind` is the class that colours it.
export function spark(width, height, kind) {
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
  const picture = svg("svg", {
    class: `spark ${kind}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true",
  }, area, line);
  return {
    picture,
    draw(values, top) {
      const { line: along, area: under } = paths(values, top, width, height);
      set(line, "d", along);
      set(area, "d", under);
    },
  };
}

export const highest = (...lists) => Math.max(0, ...lists.flat().filter(value => value !== null));

function paths(values, top, width, height) {
  const step = width / Math.max(1, values.length - 1);
  const scale = top > 0 ? (height - 2) / top : 0;
  let line = "";
  let area = "";
  let begin = null;
  values.forEach((value, i) => {
    if (value === null) return;
    const point = `${(i * step).toFixed(1)} ${(height - 1 - Math.max(0, value) * scale).toFixed(1)}`;
    if (begin === null) {
      begin = (i * step).toFixed(1);
      line = `M${point}`;
      area = `M${begin} ${height}L${point}`;
    } else {
      line += `L${point}`;
      area += `L${point}`;
    }
  });
  return { line, area: begin === null ? "" : `${area}L${width} ${height}Z` };
}

// A bar of how much of something is taken: 0 to 1.
export function bar(kind) {
  const full = svg("rect", { class: "full", x: 0, y: 0, width: 0, height: 4, rx: 2 });
  const picture = svg("svg", {
    class: `meter ${kind}`, viewBox: "0 0 60 4", preserveAspectRatio: "none", "aria-hidden": "true",
  }, svg("rect", { class: "whole", x: 0, y: 0, width: 60, height: 4, rx: 2 }), full);
  return { picture, draw: part => set(full, "width", (60 * Math.min(1, Math.max(0, part))).toFixed(1)) };
}
