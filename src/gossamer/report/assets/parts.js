"use strict";
// What charts are made of: numbers in words, axes, lines with their bands, and what a pointer shows.

const Parts = (() => {
  const encode = echarts.format.encodeHTML;
  const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

  // numbers ---------------------------------------------------------------------------------------

  const trim = (value, digits = 4) => String(Number(value.toPrecision(digits)));

  function scaled(value, unit, digits = 4) {
    let place = 0;
    while (Math.abs(Number(value.toPrecision(digits))) >= 1000 && place < PREFIXES.length - 1) {
      value /= 1000;
      place += 1;
    }
    return `${trim(value, digits)} ${PREFIXES[place]}${unit}`;
  }

  const unit = (value) =>
    value < 120 ? [1, "s"] : value < 7200 ? [60, "min"] : value < 172800 ? [3600, "h"] : [86400, "days"];

  const seconds = (value, digits) => `${trim(value / unit(value)[0], digits)} ${unit(value)[1]}`;

  const bits = (value, digits) => scaled(value, "bit", digits);
  const operations = (value, digits) => scaled(value, "FLOP", digits);
  const share = (value) => value.toFixed(4);
  /** A metric: four decimals, or four digits from 10 on. */
  const score = (value) => (Math.abs(value) < 10 ? value.toFixed(4) : Math.abs(value) < 1000 ? trim(value) : value.toFixed(0));
  const round = (value) => `round ${value}`;

  // parts -----------------------------------------------------------------------------------------

  const visible = (view) =>
    view.data.groups.map((group, place) => ({ ...group, place })).filter((group) => !view.hidden.has(group.place));

  const COLOURS = 8;
  const dash = (place) => ["solid", [7, 4], [2, 3]][Math.min(2, Math.floor(place / COLOURS))];
  const colour = (view, place) => view.theme.colours[place % COLOURS];

  const base = (view) => ({
    animation: false,
    backgroundColor: "transparent",
    textStyle: { fontFamily: FONT, color: view.theme.ink },
    grid: { left: 0, right: 18, top: 12, bottom: 0, outerBoundsMode: "same", outerBoundsContain: "all" },
    tooltip: {
      trigger: "axis",
      confine: true,
      transitionDuration: 0,
      padding: [8, 12],
      backgroundColor: view.theme.paper,
      borderColor: view.theme.line,
      textStyle: { color: view.theme.ink, fontSize: 12, fontFamily: FONT },
      axisPointer: { type: "line", lineStyle: { color: view.theme.faint, type: "dashed" }, label: { show: false } },
    },
  });

  const axis = (view, more) => ({
    axisLine: { show: false, lineStyle: { color: view.theme.line } },
    axisTick: { show: false },
    axisLabel: { color: view.theme.faint, fontSize: 11, hideOverlap: true, ...more.axisLabel },
    nameTextStyle: { color: view.theme.faint, fontSize: 11 },
    nameLocation: "middle",
    nameGap: 26,
    splitLine: { show: true, lineStyle: { color: view.theme.line } },
    minorSplitLine: { show: false },
    ...Object.fromEntries(Object.entries(more).filter(([name]) => name !== "axisLabel")),
  });

  const dot = (paint) => `<span class="dot" style="background:${paint}"></span>`;

  const told = (head, rows) =>
    `<table class="told"><caption>${head}</caption>${rows
      .map(([paint, name, text]) => `<tr><td>${dot(paint)}${encode(name)}</td><td>${text}</td></tr>`)
      .join("")}</table>`;

  /** The band of one standard error around a mean, as one polygon below its line. */
  function band(view, group, points) {
    const known = points.filter((point) => point[3] !== null && point[3] !== undefined);
    if (known.length < 2) return [];
    const rows = known.map((point) => [point[0], point[1] - point[3], point[1] + point[3]]);
    return [{
      type: "custom",
      name: group.label,
      silent: true,
      clip: true,
      z: 1,
      tooltip: { show: false },
      encode: { x: 0, y: [1, 2] },
      data: rows,
      renderItem: (params, api) => {
        if (params.context.drawn) return undefined;
        params.context.drawn = true;
        const above = rows.map((row) => api.coord([row[0], row[2]]));
        const below = rows.map((row) => api.coord([row[0], row[1]])).reverse();
        return {
          type: "polygon",
          shape: { points: [...above, ...below] },
          style: { fill: colour(view, group.place), opacity: 0.16 },
        };
      },
    }];
  }

  /** Rows of x, y, round, standard error and seeds, without gaps; on a logarithmic axis without zeros. */
  function points(table, x, y, logarithmic) {
    const [errors, seeds] = [table[`${y}±`], table[`${y}#`]];
    const rows = (table[y] || []).map((value, at) => [
      (table[x] || [])[at], value, table.round[at], errors ? errors[at] : null, seeds ? seeds[at] : 1,
    ]);
    return rows.filter(([where, value]) =>
      where !== null && where !== undefined && value !== null && (!logarithmic || where > 0));
  }

  function line(view, group, rows, more = {}) {
    const paint = colour(view, group.place);
    return {
      type: "line",
      name: group.label,
      data: rows,
      z: 3,
      showSymbol: rows.length <= 30,
      symbol: "circle",
      symbolSize: rows.length === 1 ? 8 : 5,
      lineStyle: { width: 2, color: paint, type: dash(group.place) },
      itemStyle: { color: paint },
      emphasis: { disabled: true },
      ...more,
    };
  }

  /** How far a mean and its band reach. */
  const ends = (row) => (row[3] ? [row[1] - row[3], row[1] + row[3]] : [row[1]]);

  const withError = (row, text) =>
    row[3] ? `${text(row[1])} ± ${trim(row[3], 2)} <small>n = ${row[4]}</small>` : text(row[1]);

  /** Curves of all groups that are shown: one figure against rounds, bits, time or operations. */
  function curves(view, wish) {
    const groups = visible(view);
    const found = groups.map((group) => [group, points(group[wish.table], wish.x, wish.y, wish.logarithmic)]);
    const furthest = extent([0, ...view.data.groups.flatMap((group) => group[wish.table][wish.x] || [])])[1];
    const [size, name] = wish.unit ? wish.unit(furthest) : [1];
    for (const [, rows] of found) for (const row of rows) row[0] /= size;
    const label = (value) => {
      if (wish.x === "round") return String(value);
      return name ? `${trim(value)} ${name}` : wish.text(value, 3);
    };
    const inside = found.map(([, rows]) => rows.filter(([x]) => !view.zoom || (x >= view.zoom.x[0] && x <= view.zoom.x[1])));
    const heights = wish.range(inside, view.zoom ? "whole" : view.chosen.range, view.data.metric.share);
    const option = base(view);
    option.tooltip.formatter = (items) => {
      const lines = items.filter((item) => item.seriesType === "line");
      if (!lines.length) return "";
      const where = lines[0].value;
      const head = wish.x === "round" ? round(where[0]) : `${wish.text(where[0] * size)} · round ${where[2]}`;
      return told(head, lines.map((item) => [item.color, item.seriesName, withError(item.value, wish.figure)]));
    };
    option.xAxis = axis(view, {
      type: wish.logarithmic ? "log" : "value",
      name: wish.name,
      splitLine: { show: false },
      splitNumber: view.width < 420 ? 3 : 5,
      minInterval: wish.x === "round" ? 1 : undefined,
      min: wish.logarithmic ? decade(found) : 0,
      max: wish.logarithmic ? ({ max }) => max * 1.2 : "dataMax",
      axisLabel: { showMaxLabel: wish.logarithmic ? false : undefined, formatter: label },
      axisLine: { show: true, lineStyle: { color: view.theme.line } },
    });
    option.yAxis = axis(view, { type: "value", splitNumber: 5, ...heights });
    option.series = found.flatMap(([group, rows]) => [...band(view, group, rows), line(view, group, rows)]);
    return option;
  }

  /** The power of ten at or below the smallest of what is drawn. */
  function decade(found) {
    const all = found.flatMap(([, rows]) => rows.map((row) => row[0]));
    return all.length ? 10 ** Math.floor(Math.log10(extent(all)[0]) + 1e-9) : undefined;
  }

  const TICKS = 7;
  const PADDING = 0.04;
  const FLATTEST = 0.02; // the least height of an axis of scores: two points, or two percent
  const LATE = 5; // points that must remain of every curve whose rise is left out

  /** Round figures from `least` to `most`: what ECharts needs to know of an axis. */
  function ticks(least, most) {
    const size = 10 ** Math.floor(Math.log10((most - least) / TICKS));
    const interval = size * [1, 2, 5, 10].find((times) => (most - least) / (size * times) <= TICKS);
    const digits = Math.max(0, -Math.floor(Math.log10(interval) + 1e-9));
    const snap = (value, round) => Number((round(value / interval) * interval).toFixed(digits));
    return {
      min: snap(least, (steps) => Math.floor(steps + 1e-6)), max: snap(most, (steps) => Math.ceil(steps - 1e-6)),
      interval, axisLabel: { formatter: (value) => value.toFixed(digits) },
    };
  }

  /** The rows of a curve in the later half of its rounds. */
  const late = (rows) => rows.filter((row) => row[2] >= rows.at(-1)[2] / 2);

  /**
   * The heights of scores; shares are within 0 to 1. Most curves rise steeply and then differ by a point, so that those
   * points show only without the rise: unless all is wanted, the axis leaves it out where it is most of the height.
   */
  function around(curves, range, shares = true) {
    const known = curves.filter((rows) => rows.length);
    if (!known.length) return { min: 0, max: 1 };
    const all = extent(known.flatMap((rows) => rows.flatMap(ends)));
    const end = extent(known.flatMap((rows) => late(rows).flatMap(ends)));
    const flat = end[1] - end[0] < 0.5 * (all[1] - all[0]) && known.every((rows) => late(rows).length >= LATE);
    const [least, most] = range === "late" || (range === "auto" && flat) ? end : all;
    const flattest = FLATTEST * (shares ? 1 : Math.max(Math.abs(least), Math.abs(most)) || 1);
    const margin = Math.max(PADDING * (most - least), (flattest - (most - least)) / 2);
    return shares ? ticks(Math.max(0, least - margin), Math.min(1, most + margin)) : ticks(least - margin, most + margin);
  }

  const fromZero = (curves) => {
    const values = curves.flatMap((rows) => rows.flatMap(ends));
    return { min: 0, max: values.length && extent(values)[1] > 0 ? undefined : 1 };
  };

  /** An option whose axes show only what was selected. */
  function zoomed(option, zoom) {
    if (!zoom) return option;
    for (const axis of [option.xAxis].flat()) {
      const whole = axis.type === "category";
      Object.assign(axis, { min: whole ? Math.round(zoom.x[0]) : zoom.x[0], max: whole ? Math.round(zoom.x[1]) : zoom.x[1] });
      if (whole) continue;
      Object.assign(axis.axisLabel, { showMinLabel: false, showMaxLabel: false });
      if (zoom.x[1] / zoom.x[0] < 30) axis.type = "value"; // too few powers of ten to read
    }
    if (zoom.y) Object.assign(option.yAxis, { ...zoom.y, axisLabel: { ...option.yAxis.axisLabel, ...zoom.y.axisLabel } });
    return option;
  }

  const extent = (values) =>
    values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);

  return {
    encode, trim, unit, seconds, bits, operations, share, score, round, visible, COLOURS, colour, base,
    axis, told, band, points, line, ends, withError, curves, around, fromZero, extent, ticks, zoomed, dash,
  };
})();
