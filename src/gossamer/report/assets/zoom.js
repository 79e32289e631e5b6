"use strict";
// Selecting a part of a chart with a pointer, in the units of its axes.

const Zoom = (() => {
  const SMALLEST = 8; // pixels; anything less is a click

  /** What is selected from one pixel to another; the height counts only in charts with one pair of axes. */
  function selection(chart, grid, from, to) {
    const [one, other] = [from, to].map((point) => chart.drawn.convertFromPixel({ gridIndex: grid }, point));
    const ordered = (at) => [one[at], other[at]].sort((a, b) => a - b);
    const single = [chart.drawn.getOption().grid].flat().length === 1;
    const high = Math.abs(from[1] - to[1]) >= SMALLEST;
    return { x: ordered(0), y: single && high ? Parts.ticks(...ordered(1)) : null };
  }

  const gridAt = (chart, point) =>
    [chart.drawn.getOption().grid].flat().findIndex((_, at) => chart.drawn.containPixel({ gridIndex: at }, point));

  /** Calls `done` with what is selected: by a mouse at any time, by touch only when it is meant to zoom. */
  function watch(chart, armed, done) {
    const { element } = chart;
    const place = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    element.addEventListener("pointerdown", (event) => {
      const from = place(event);
      const grid = chart.drawn && event.button === 0 ? gridAt(chart, from) : -1;
      if (grid < 0 || (event.pointerType !== "mouse" && !armed())) return;
      event.preventDefault();
      element.setPointerCapture(event.pointerId);
      const shade = element.appendChild(Object.assign(document.createElement("div"), { className: "selection" }));
      element.classList.add("selecting");

      // The selection ends at the edges of the panel in which it began.
      let to = from;
      const move = (moved) => {
        const point = place(moved);
        if (gridAt(chart, point) === grid) to = point;
        else if (gridAt(chart, [point[0], to[1]]) === grid) to = [point[0], to[1]];
        else if (gridAt(chart, [to[0], point[1]]) === grid) to = [to[0], point[1]];
        const [left, top] = [Math.min(from[0], to[0]), Math.min(from[1], to[1])];
        const [width, height] = [Math.abs(from[0] - to[0]), Math.abs(from[1] - to[1])];
        Object.assign(shade.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
      };
      const end = (released) => {
        element.removeEventListener("pointermove", move);
        element.removeEventListener("pointerup", end);
        element.removeEventListener("pointercancel", end);
        element.classList.remove("selecting");
        shade.remove();
        if (released.type === "pointerup" && Math.abs(from[0] - to[0]) >= SMALLEST) {
          done(selection(chart, grid, from, to));
        }
      };
      element.addEventListener("pointermove", move);
      element.addEventListener("pointerup", end);
      element.addEventListener("pointercancel", end);
    });
    element.addEventListener("dblclick", () => done(null));
  }

  return { watch };
})();
