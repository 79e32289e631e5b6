// Full 3 x 3 convolutions of stride one by Winograd's algorithm F(4 x 4, 3 x 3).
//
// An output tile of 4 x 4 pixels needs 36 products for each pair of channels instead of 144:
//
//   V = B' x B of each 6 x 6 tile of the input      [entry][input][tile, example]
//   U = G w G' of each kernel                       [entry][output][input]
//   M = U V, one matrix product for each of the 36 entries
//   y = A' M A of each tile
//
// Tiles and examples are the lanes of the products, so a small batch fills them as a large one
// does. The backward pass is the adjoint of each line, with the same matrices; it transforms the
// output's gradient once, for both the input's and the kernel's.
//
// The polynomial is interpolated at 0, infinity, +-r and +-1/r with r = sqrt(2): the rounding errors
// are then a third of those of the usual 0, +-1, +-2.
#pragma once
#include "image.h"
#include "rows.h"

namespace gossamer {

constexpr int TILE = 4, SPAN = 6, ENTRIES = SPAN * SPAN;  // pixels of an output and of an input tile
constexpr float NEAR = 0.70710678f, FAR = 1.41421356f;    // the points; their squares are 1/2 and 2

// ---- transforms of one dimension --------------------------------------------------------------

typedef Lanes<LANES> Line;  // of any pixels: these transforms work lane by lane

INLINE Line scaled(float factor, const Line& v) { return all<LANES>(factor) * v; }
// a + factor * b
INLINE Line plus(Line a, float factor, const Line& b) {
  add_product(a, all<LANES>(factor), b);
  return a;
}

INLINE void input_transform(const Line* x, Line* v) {
  const Line near_even = plus(x[4], -2, x[2]), near_odd = scaled(NEAR, plus(x[3], -2, x[1]));
  const Line far_even = plus(x[4], -.5f, x[2]), far_odd = scaled(FAR, plus(x[3], -.5f, x[1]));
  v[0] = plus(x[0] + x[4], -2.5f, x[2]);
  v[1] = near_even + near_odd, v[2] = near_even - near_odd;
  v[3] = far_even + far_odd, v[4] = far_even - far_odd;
  v[5] = plus(x[1] + x[5], -2.5f, x[3]);
}
INLINE void input_adjoint(const Line* v, Line* x) {
  const Line near_even = v[1] + v[2], near_odd = scaled(NEAR, v[1] - v[2]);
  const Line far_even = v[3] + v[4], far_odd = scaled(FAR, v[3] - v[4]);
  x[0] = v[0];
  x[1] = plus(plus(v[5], -2, near_odd), -.5f, far_odd);
  x[2] = plus(plus(scaled(-2.5f, v[0]), -2, near_even), -.5f, far_even);
  x[3] = plus(near_odd + far_odd, -2.5f, v[5]);
  x[4] = v[0] + near_even + far_even;
  x[5] = v[5];
}
INLINE void output_transform(const Line* m, Line* y) {
  const Line near_even = m[1] + m[2], near_odd = scaled(NEAR, m[1] - m[2]);
  const Line far_even = m[3] + m[4], far_odd = scaled(FAR, m[3] - m[4]);
  y[0] = m[0] + near_even + far_even;
  y[1] = near_odd + far_odd;
  y[2] = plus(scaled(.5f, near_even), 2, far_even);
  y[3] = plus(plus(m[5], .5f, near_odd), 2, far_odd);
}
INLINE void output_adjoint(const Line* y, Line* m) {
  const Line near_even = plus(y[0], .5f, y[2]), near_odd = scaled(NEAR, plus(y[1], .5f, y[3]));
  const Line far_even = plus(y[0], 2, y[2]), far_odd = scaled(FAR, plus(y[1], 2, y[3]));
  m[0] = y[0];
  m[1] = near_even + near_odd, m[2] = near_even - near_odd;
  m[3] = far_even + far_odd, m[4] = far_even - far_odd;
  m[5] = y[3];
}
INLINE void kernel_transform(const Line* w, Line* u) {
  const Line near_even = scaled(-2 / 3.f, plus(w[0], .5f, w[2])), near_odd = scaled(-2 / 3.f * NEAR, w[1]);
  const Line far_even = scaled(1 / 6.f, plus(w[0], 2, w[2])), far_odd = scaled(1 / 6.f * FAR, w[1]);
  u[0] = w[0];
  u[1] = near_even + near_odd, u[2] = near_even - near_odd;
  u[3] = far_even + far_odd, u[4] = far_even - far_odd;
  u[5] = w[2];
}
INLINE void kernel_adjoint(const Line* u, Line* w) {
  const Line near_even = scaled(-2 / 3.f, u[1] + u[2]), far_even = scaled(1 / 6.f, u[3] + u[4]);
  w[0] = u[0] + near_even + far_even;
  w[1] = plus(scaled(-2 / 3.f * NEAR, u[1] - u[2]), 1 / 6.f * FAR, u[3] - u[4]);
  w[2] = plus(plus(u[5], .5f, near_even), 2, far_even);
}

// ---- kernels ----------------------------------------------------------------------------------

// `w` is [output][kernel row][kernel column][input], `u` [entry][output][input].
static void transform_kernels(int outputs, int inputs, const float* w, float* u) {
  for (int o = 0; o < outputs; o++)
    pieces(inputs, [&](long i, int n) {
      Line rows[SPAN][3], column[3], line[SPAN];
      for (int x = 0; x < 3; x++) {
        for (int y = 0; y < 3; y++) column[y] = load_piece(w + ((long)o * 9 + y * 3 + x) * inputs + i, n);
        kernel_transform(column, line);
        for (int y = 0; y < SPAN; y++) rows[y][x] = line[y];
      }
      for (int y = 0; y < SPAN; y++) {
        kernel_transform(rows[y], line);
        for (int x = 0; x < SPAN; x++)
          store_piece(u + ((long)(y * SPAN + x) * outputs + o) * inputs + i, line[x], n);
      }
    });
}
static void transform_kernels_back(int outputs, int inputs, const float* u, float* w) {
  for (int o = 0; o < outputs; o++)
    pieces(inputs, [&](long i, int n) {
      Line rows[SPAN][3], column[SPAN], line[3];
      for (int y = 0; y < SPAN; y++) {
        for (int x = 0; x < SPAN; x++)
          column[x] = load_piece(u + ((long)(y * SPAN + x) * outputs + o) * inputs + i, n);
        kernel_adjoint(column, rows[y]);
      }
      for (int x = 0; x < 3; x++) {
        for (int y = 0; y < SPAN; y++) column[y] = rows[y][x];
        kernel_adjoint(column, line);
        for (int y = 0; y < 3; y++) store_piece(w + ((long)o * 9 + y * 3 + x) * inputs + i, line[y], n);
      }
    });
}

// ---- tiles ------------------------------------------------------------------------------------

// Tile rows of an image that are computed together. Their tiles and examples are the columns of the
// matrices, which zeros fill up to whole vectors.
struct Strip {
  int first, count;  // tile rows
  int across, batch, pad_y, pad_x;

  long columns() const { return (long)count * across * batch; }
  // The vector of a small batch reaches beyond the last tile.
  long stride() const { return (columns() + std::max(0, LANES - batch) + LANES - 1) / LANES * LANES; }
  // Floats of a line of pixels below all tiles, and of what a vector may reach beyond it.
  long line() const { return ((long)across * TILE + 2) * batch + LANES; }
  long margin() const { return (long)pad_x * batch; }
};
// A matrix for each entry, in memory: [entry][channel][column].
struct Matrices {
  float* at;
  int channels;
  long stride;

  long entry() const { return channels * stride; }
  float* of(int e) const { return at + e * entry(); }
};

// Calls work(first) for vectors of a batch. The last one overlaps the one before; that of a batch of
// less than sixteen reaches beyond it, into what is written next.
template <class Work>
INLINE void examples(int batch, Work work) {
  int b = 0;
  for (; b + LANES <= batch; b += LANES) work(b);
  if (b < batch) work(std::max(0, batch - LANES));
}
// Calls work(first, count, skip) for pieces of a line; the last one overlaps the one before by `skip` floats.
template <class Work>
INLINE void line_pieces(long count, Work work) {
  long i = 0;
  for (; i + LANES <= count; i += LANES) work(i, LANES, 0);
  if (i == count) return;
  if (count >= LANES) work(count - LANES, LANES, (int)(i + LANES - count));
  else work(0, (int)count, 0);
}

// Vertically: rows of an image, or zeros above and below it, become SPAN lines.
template <int ROWS, class Transform>
INLINE void rows_to_lines(const Image& image, int c, int top, long margin, long line, float* lines, Transform transform) {
  static const Line zero = all<LANES>(0);
  const float* row[ROWS];
  for (int k = 0; k < ROWS; k++) row[k] = top + k >= 0 && top + k < image.height ? image.of(c, top + k) : nullptr;
  const long width = image.row_floats();
  for (int k = 0; k < SPAN; k++) {
    memset(lines + k * line, 0, margin * sizeof(float));
    memset(lines + k * line + margin + width, 0, (line - margin - width) * sizeof(float));
  }
  line_pieces(width, [&](long i, int n, int) __attribute__((always_inline)) {
    Line x[ROWS], y[SPAN];
    for (int k = 0; k < ROWS; k++) x[k] = row[k] ? load_piece(row[k] + i, n) : zero;
    transform(x, y);
    for (int k = 0; k < SPAN; k++) store_piece(lines + k * line + margin + i, y[k], n);
  });
}
// Horizontally: the pixels of each tile become entries of the matrices.
template <int PIXELS, class Transform>
INLINE void lines_to_entries(const float* lines, const Strip& s, long entry, float* to, Transform transform) {
  for (int k = 0; k < SPAN; k++)
    for (int a = 0; a < s.across; a++)
      examples(s.batch, [&](int b) __attribute__((always_inline)) {
        const float* from = lines + k * s.line() + (long)a * TILE * s.batch + b;
        Line x[PIXELS], y[SPAN];
        for (int j = 0; j < PIXELS; j++) x[j] = load<LANES>(from + j * s.batch);
        transform(x, y);
        for (int j = 0; j < SPAN; j++) store<LANES>(to + (k * SPAN + j) * entry + (long)a * s.batch + b, y[j]);
      });
}
INLINE void clear_padding(const Matrices& m, int c, const Strip& s) {
  for (int e = 0; e < ENTRIES; e++)
    memset(m.of(e) + c * s.stride() + s.columns(), 0, (s.stride() - s.columns()) * sizeof(float));
}

// V of an image, or dM of a gradient: the first is seen through tiles of SPAN pixels, the other of TILE.
static void transform_input(const Image& in, const Strip& s, float* lines, const Matrices& v) {
  for (int c = 0; c < in.channels; c++) {
    for (int t = 0; t < s.count; t++) {
      rows_to_lines<SPAN>(in, c, (s.first + t) * TILE - s.pad_y, s.margin(), s.line(), lines, input_transform);
      lines_to_entries<SPAN>(lines, s, v.entry(), v.at + c * v.stride + (long)t * s.across * s.batch, input_transform);
    }
    clear_padding(v, c, s);
  }
}
static void transform_gradient(const Image& grad, const Strip& s, float* lines, const Matrices& m) {
  for (int c = 0; c < grad.channels; c++) {
    for (int t = 0; t < s.count; t++) {
      rows_to_lines<TILE>(grad, c, (s.first + t) * TILE, 0, s.line(), lines, output_adjoint);
      lines_to_entries<TILE>(lines, s, m.entry(), m.at + c * m.stride + (long)t * s.across * s.batch, output_adjoint);
    }
    clear_padding(m, c, s);
  }
}

// The tiles of one tile row as SPAN lines of output pixels.
INLINE void entries_to_lines(const float* from, long entry, const Strip& s, float* lines) {
  for (int k = 0; k < SPAN; k++)
    for (int a = 0; a < s.across; a++)
      examples(s.batch, [&](int b) __attribute__((always_inline)) {
        float* to = lines + k * s.line() + (long)a * TILE * s.batch + b;
        Line x[SPAN], y[TILE];
        for (int j = 0; j < SPAN; j++) x[j] = load<LANES>(from + (k * SPAN + j) * entry + (long)a * s.batch + b);
        output_transform(x, y);
        for (int j = 0; j < TILE; j++) store<LANES>(to + j * s.batch, y[j]);
      });
}
static void transform_output(const Matrices& m, const Strip& s, const float* bias, bool relu, float* lines, const Image& out) {
  for (int c = 0; c < out.channels; c++) {
    const Line shift = all<LANES>(bias ? bias[c] : 0.f);
    for (int t = 0; t < s.count; t++) {
      entries_to_lines(m.at + c * m.stride + (long)t * s.across * s.batch, m.entry(), s, lines);
      const int top = (s.first + t) * TILE, rows = std::min(TILE, out.height - top);
      line_pieces(out.row_floats(), [&](long i, int n, int) __attribute__((always_inline)) {
        Line x[SPAN], y[TILE];
        for (int k = 0; k < SPAN; k++) x[k] = load<LANES>(lines + k * s.line() + i);
        output_transform(x, y);
        for (int k = 0; k < rows; k++) {
          const Line v = y[k] + shift;
          store_piece(out.of(c, top + k) + i, relu ? positive_part(v) : v, n);
        }
      });
    }
  }
}

// The same of input pixels, where neighbouring tiles overlap and are added.
INLINE void entries_to_lines_back(const float* from, long entry, const Strip& s, float* lines) {
  for (int k = 0; k < SPAN; k++)
    examples(s.batch, [&](int b) __attribute__((always_inline)) {
      Line fifth = all<LANES>(0), sixth = fifth;  // of the tile before
      for (int a = 0; a < s.across; a++) {
        float* to = lines + k * s.line() + (long)a * TILE * s.batch + b;
        Line x[SPAN], y[SPAN];
        for (int j = 0; j < SPAN; j++) x[j] = load<LANES>(from + (k * SPAN + j) * entry + (long)a * s.batch + b);
        input_adjoint(x, y);
        y[0] = y[0] + fifth, y[1] = y[1] + sixth;
        for (int j = 0; j < SPAN; j++) store<LANES>(to + j * s.batch, y[j]);
        fifth = y[4], sixth = y[5];
      }
    });
}
static void transform_input_back(const Matrices& v, const Strip& s, bool add, float* lines, const Image& to) {
  for (int c = 0; c < to.channels; c++)
    for (int t = 0; t < s.count; t++) {
      entries_to_lines_back(v.at + c * v.stride + (long)t * s.across * s.batch, v.entry(), s, lines);
      const int top = (s.first + t) * TILE - s.pad_y, first = std::max(0, -top), last = std::min(SPAN, to.height - top);
      const int added = add ? SPAN : s.first + t ? 2 : 0;  // the rows above this one hold something already
      line_pieces(to.row_floats(), [&](long i, int n, int skip) __attribute__((always_inline)) {
        Line x[SPAN], y[SPAN];
        for (int k = 0; k < SPAN; k++) x[k] = load<LANES>(lines + k * s.line() + s.margin() + i);
        input_adjoint(x, y);
        for (int k = first; k < last; k++) {
          float* at = to.of(c, top + k) + i;
          store_piece(at, k < added ? load_piece(at, n) + without_first(y[k], skip) : y[k], n);
        }
      });
    }
}

// ---- whole layers -----------------------------------------------------------------------------

// The matrices of a strip: large enough for long rows of products, and still in a cache.
constexpr long STRIP_FLOATS = 1 << 20;

struct Winograd {
  int inputs, outputs, down, across, batch, pad_y, pad_x;

  Winograd(const Image& in, const Image& out, int pad_y, int pad_x)
      : inputs(in.channels), outputs(out.channels), down((out.height + TILE - 1) / TILE),
        across((out.width + TILE - 1) / TILE), batch(in.batch), pad_y(pad_y), pad_x(pad_x) {}

  // Tile rows of a strip, about the same number in all of them.
  int together() const {
    const long floats = (long)ENTRIES * (inputs + outputs) * across * batch;
    const int most = (int)std::clamp<long>(STRIP_FLOATS / floats, 1, down), strips = (down + most - 1) / most;
    return (down + strips - 1) / strips;
  }
  Strip strip(int first) const { return {first, std::min(together(), down - first), across, batch, pad_y, pad_x}; }
  long kernel_floats() const { return (long)ENTRIES * inputs * outputs; }
  long floats() const {
    const Strip s = strip(0);
    return 2 * kernel_floats() + SPAN * s.line() + LANES + ENTRIES * s.stride() * (inputs + outputs);
  }
  // Scratch memory: U, dU, the lines, V and M, at boundaries of vectors.
  float* u(float* scratch) const { return scratch; }
  float* du(float* scratch) const { return scratch + kernel_floats(); }
  Matrices v(float* scratch, const Strip& s) const { return {du(scratch) + kernel_floats(), inputs, s.stride()}; }
  Matrices m(float* scratch, const Strip& s) const {
    return {v(scratch, s).at + ENTRIES * v(scratch, s).entry(), outputs, s.stride()};
  }
  float* lines(float* scratch, const Strip& s) const { return m(scratch, s).at + ENTRIES * m(scratch, s).entry(); }
};

// `w` is [output][kernel row][kernel column][input]; `scratch` has room for floats().
static void winograd_pass(const Winograd& g, const Image& in, const float* w, const float* bias, bool relu, float* scratch, const Image& out) {
  float* u = g.u(scratch);
  transform_kernels(g.outputs, g.inputs, w, u);
  for (int t = 0; t < g.down; t += g.together()) {
    const Strip s = g.strip(t);
    const Matrices v = g.v(scratch, s), m = g.m(scratch, s);
    float* lines = g.lines(scratch, s);
    transform_input(in, s, lines, v);
    const Product product{g.outputs, g.inputs, (int)s.stride(), g.inputs, 1, false, false};
    for (int e = 0; e < ENTRIES; e++) dense_product(product, u + (long)e * g.outputs * g.inputs, nullptr, v.of(e), m.of(e));
    transform_output(m, s, bias, relu, lines, out);
  }
}

// The gradients of the kernels, and of the input where it is wanted.
static void winograd_backward(const Winograd& g, const Image& in, const Image& grad, const float* w, float* scratch, float* dw,
                              bool add, const Image& to) {
  float *u = g.u(scratch), *du = g.du(scratch);
  const long kernels = (long)g.outputs * g.inputs;
  if (to.at) transform_kernels(g.outputs, g.inputs, w, u);
  for (int t = 0; t < g.down; t += g.together()) {
    const Strip s = g.strip(t);
    const Matrices v = g.v(scratch, s), m = g.m(scratch, s);
    float* lines = g.lines(scratch, s);
    transform_gradient(grad, s, lines, m);
    if (dw) {
      transform_input(in, s, lines, v);
      for (int e = 0; e < ENTRIES; e++)
        row_products(g.outputs, s.stride(), g.inputs, m.of(e), {v.of(e), s.stride()},
                     [&](int o, int i, float sum) __attribute__((always_inline)) {
                       float& at = du[e * kernels + (long)o * g.inputs + i];
                       at = t ? at + sum : sum;
                     });
    }
    if (!to.at) continue;
    const Product product{g.inputs, g.outputs, (int)s.stride(), 1, g.inputs, false, false};
    for (int e = 0; e < ENTRIES; e++) dense_product(product, u + e * kernels, nullptr, m.of(e), v.of(e));
    transform_input_back(v, s, add, lines, to);
  }
  if (dw) transform_kernels_back(g.outputs, g.inputs, du, dw);
}

}  // namespace gossamer
