"use strict";
// Charts as files: vector and raster images for papers, and the numbers behind them.

const Downloads = (() => {
  const { encode, visible, colour, dash } = Parts;
  const SIZE = { width: 640, whole: 960, height: 360, margin: 12 };
  const LEGEND = { font: "12px sans-serif", line: 20, swatch: 24, gap: 18 };
  const PIXELS = 3; // of the raster image for each of the vector image

  // the data --------------------------------------------------------------------------------------

  function curves(view, wish) {
    const more = wish.x === "round" ? [] : [wish.x];
    const rows = visible(view).flatMap((group) => {
      const table = group[wish.table];
      const at = (name, place) => (table[name] || [])[place];
      return (table[wish.y] || []).map((value, place) => [
        group.label, table.round[place], ...more.map((name) => at(name, place)), value, at(`${wish.y}±`, place),
        at(`${wish.y}#`, place) ?? 1,
      ]);
    });
    const title = wish.y === "global_score" ? `global_${view.data.metric.name}` : wish.y;
    return [["run", "round", ...more, title, "standard_error", "n"], ...rows];
  }

  const TABLES = {
    histogram: (view) => [
      ["run", `${view.data.metric.name}_from`, `${view.data.metric.name}_to`, "share_of_clients"],
      ...visible(view).flatMap((group) => group.histogram.map((share, at, all) => {
        const [from, to] = group.between;
        return [group.label, from + (at / all.length) * (to - from), from + ((at + 1) / all.length) * (to - from), share];
      })),
    ],
    ledger: (view) => [
      ["run", "direction", "field", "bits_sent", "bits_as_papers_count"],
      ...visible(view).flatMap((group) => group.ledger.map((entry) => [group.label, ...entry])),
    ],
    layers: (view) => {
      const figure = view.chosen.layer;
      return [
        ["run", "layer", "round", figure, "standard_error", "n"],
        ...visible(view).flatMap((group) => view.data.layers.flatMap((layer) => {
          const table = (group.layers[layer] || {})[figure] || {};
          const at = (name, place) => (table[name] || [])[place];
          return (table[figure] || []).map((value, place) =>
            [group.label, layer, table.round[place], value, at(`${figure}±`, place), at(`${figure}#`, place) ?? 1]);
        })),
      ];
    },
    partition: (view, which) => {
      const { clients, counts } = view.data.partitions[which];
      return [["client", "class", "examples"], ...counts.flatMap((row, at) => row.map((count, label) => [clients[at], label, count]))];
    },
  };

  function table(view, name, which) {
    const wish = Charts.wishes[name];
    return wish ? curves(view, wish(view)) : TABLES[name](view, which);
  }

  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  const lines = (rows) => rows.map((row) => `${row.map(cell).join(",")}\n`).join("");

  // the chart -------------------------------------------------------------------------------------

  /** The names of the runs, which on the page are above all charts. */
  function legend(view, width) {
    let [x, y] = [0, 0];
    const drawn = visible(view).map((group) => {
      const text = group.seeds > 1 ? `${group.label} (n = ${group.seeds})` : group.label;
      const needs = LEGEND.swatch + 6 + echarts.format.getTextRect(text, LEGEND.font).width;
      if (x && x + needs > width) [x, y] = [0, y + LEGEND.line];
      const [left, middle, stroke] = [x, y + LEGEND.line / 2, dash(group.place)];
      const dashed = stroke === "solid" ? "" : ` stroke-dasharray="${stroke.join(" ")}"`;
      x += needs + LEGEND.gap;
      return `<path d="M${left} ${middle}h${LEGEND.swatch}" stroke="${colour(view, group.place)}" stroke-width="2"${dashed}/>`
        + `<text x="${left + LEGEND.swatch + 6}" y="${middle}" dominant-baseline="central" fill="${view.theme.ink}">${encode(text)}</text>`;
    });
    const svg = `<g font-family="sans-serif" font-size="12">${drawn.join("")}</g>`;
    return drawn.length > 1 ? { svg, height: y + LEGEND.line + 8 } : { svg: "", height: 0 };
  }

  // What is on the page in the title above a chart.
  const HEIGHTS = {
    global_score: "METRIC, global model", personal_mean: "METRIC, personal models",
    local_mean: "METRIC, clients’ own models", personal_worst_decile: "METRIC, worst decile of clients",
    density: "density", mismatch: "mask mismatch with the previous round", client_mismatch: "mask mismatch between clients",
  };

  /** The option of a chart whose vertical axis has a name, as it has no title. */
  function named(view, name, which) {
    const option = Charts.option(view, name, which);
    const wish = Charts.wishes[name];
    const text = wish ? HEIGHTS[wish(view).y].replace("METRIC", view.data.metric.title) : name === "histogram" ? "share of clients" : "";
    if (text) Object.assign(option.yAxis, { name: text, nameGap: 40 });
    return option;
  }

  /** A chart on white paper, with the names of its runs. */
  function image(view, { name, which, whole }) {
    const width = whole ? SIZE.whole : SIZE.width;
    const wide = { ...view, width };
    const height = Charts.heights[name] ? Charts.heights[name](wide, which) : SIZE.height;
    const chart = echarts.init(null, null, { renderer: "svg", ssr: true, width, height });
    chart.setOption(named(wide, name, which));
    const inside = chart.renderToSVGString().replace(/^<svg[^>]*>/, "").replace(/<\/svg>\s*$/, "");
    chart.dispose();
    const above = name === "partition" ? { svg: "", height: 0 } : legend(view, width);
    const [across, down] = [width + 2 * SIZE.margin, height + above.height + 2 * SIZE.margin];
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="${across}" `
      + `height="${down}" viewBox="0 0 ${across} ${down}"><rect width="100%" height="100%" fill="#fff"/>`
      + `<g transform="translate(${SIZE.margin} ${SIZE.margin})">${above.svg}`
      + `<g transform="translate(0 ${above.height})">${inside}</g></g></svg>\n`;
    return { svg, width: across, height: down };
  }

  async function pixels({ svg, width, height }) {
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
    await picture.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: PIXELS * width, height: PIXELS * height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  // files -----------------------------------------------------------------------------------------

  function save(title, suffix, blob) {
    const name = title.toLowerCase().replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 80);
    const link = Object.assign(document.createElement("a"), {
      href: URL.createObjectURL(blob), download: `${name || "chart"}.${suffix}`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  return {
    svg: (title, view, chart) => save(title, "svg", new Blob([image(view, chart).svg], { type: "image/svg+xml" })),
    png: async (title, view, chart) => save(title, "png", await pixels(image(view, chart))),
    csv: (title, view, chart) => save(title, "csv", new Blob([lines(table(view, chart.name, chart.which))], { type: "text/csv" })),
  };
})();
