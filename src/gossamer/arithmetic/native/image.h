// Images in memory, what is computed element by element, and sums over a channel.
#pragma once
#include "vector.h"

namespace gossamer {

// An image in memory: [channel][row][pixel][example], with `halo` zero pixels beside each row.
// `at` is its first pixel.
struct Image {
  float* at;
  int channels, height, width, halo, batch;

  long row() const { return (long)(width + 2 * halo) * batch; }
  long channel() const { return height * row(); }
  long row_floats() const { return (long)width * batch; }
  long pixels() const { return (long)height * width; }
  float* of(int c, int y) const { return at + c * channel() + y * row(); }
};

static void clear_halo(const Image& image) {
  if (!image.halo) return;
  const size_t side = (size_t)image.halo * image.batch;
  for (long r = 0; r < (long)image.channels * image.height; r++) {
    float* row = image.at + r * image.row();
    memset(row - side, 0, side * sizeof(float));
    memset(row + image.row_floats(), 0, side * sizeof(float));
  }
}

// Runs of floats without gaps: whole channels where there is no halo, otherwise rows.
template <class Work>
INLINE void runs(const Image& a, const Image& b, Work work) {
  const bool whole = !a.halo && !b.halo;
  const long count = whole ? a.height * a.row_floats() : a.row_floats();
  for (int c = 0; c < a.channels; c++)
    for (int y = 0; y < (whole ? 1 : a.height); y++) work(c, a.of(c, y), b.of(c, y), count);
}

// Calls work(first, count) for pieces of at most sixteen floats.
template <class Work>
INLINE void pieces(long count, Work work) {
  long i = 0;
  for (; i + LANES <= count; i += LANES) work(i, LANES);
  if (i < count) work(i, (int)(count - i));
}
INLINE Lanes<LANES> load_piece(const float* from, int count) {
  if (count == LANES) return load<LANES>(from);
  float lane[LANES] = {};
  for (int i = 0; i < count; i++) lane[i] = from[i];
  return load<LANES>(lane);
}
INLINE void store_piece(float* to, const Lanes<LANES>& v, int count) {
  if (count == LANES) return store<LANES>(to, v);
  float lane[LANES];
  store<LANES>(lane, v);
  for (int i = 0; i < count; i++) to[i] = lane[i];
}
INLINE Lanes<LANES> first_lanes(const Lanes<LANES>& v, int count) {
  if (count == LANES) return v;
  float lane[LANES];
  store<LANES>(lane, v);
  for (int i = count; i < LANES; i++) lane[i] = 0;
  return load<LANES>(lane);
}

// ---- elementwise ------------------------------------------------------------------------------

static void relu(const Image& in, const Image& out) {
  runs(in, out, [](int, const float* x, float* y, long count) {
    pieces(count, [&](long i, int n) { store_piece(y + i, positive_part(load_piece(x + i, n)), n); });
  });
}

// Zeroes the gradient where an activation is zero; reads and writes in place.
static void mask_by_sign(const Image& out, const Image& grad) {
  runs(out, grad, [](int, const float* y, float* g, long count) {
    pieces(count, [&](long i, int n) {
      store_piece(g + i, where_positive(load_piece(y + i, n), load_piece(g + i, n)), n);
    });
  });
}

static void add_images(const Image& a, const Image& b, const Image& out, bool with_relu) {
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++) {
      const float *p = a.of(c, y), *q = b.of(c, y);
      float* to = out.of(c, y);
      pieces(out.row_floats(), [&](long i, int n) {
        const Lanes<LANES> v = load_piece(p + i, n) + load_piece(q + i, n);
        store_piece(to + i, with_relu ? positive_part(v) : v, n);
      });
    }
}

// Copies an image, or adds it to another; also turns an image into a vector and back, whose
// order of numbers is the same.
static void copy_rows(const Image& from, const Image& to, bool add) {
  const Image& rows = from.channels < to.channels ? from : to;  // the one that is not flattened
  const long count = rows.row_floats();
  long at = 0;
  for (int c = 0; c < rows.channels; c++)
    for (int y = 0; y < rows.height; y++, at += count) {
      const float* x = from.channels == rows.channels ? from.of(c, y) : from.at + at;
      float* t = to.channels == rows.channels ? to.of(c, y) : to.at + at;
      if (!add) memcpy(t, x, count * sizeof(float));
      else
        for (long i = 0; i < count; i++) t[i] += x[i];
    }
}

// Every stride-th pixel; channels that the input does not have are zero.
static void subsample(const Image& in, const Image& out, int stride) {
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++)
      for (int x = 0; x < out.width; x++) {
        float* to = out.of(c, y) + (long)x * out.batch;
        const size_t size = out.batch * sizeof(float);
        if (c < in.channels) memcpy(to, in.of(c, y * stride) + (long)x * stride * in.batch, size);
        else memset(to, 0, size);
      }
}
static void subsample_backward(const Image& grad, const Image& to, int stride) {
  for (int c = 0; c < to.channels; c++)
    for (int y = 0; y < grad.height; y++)
      for (int x = 0; x < grad.width; x++) {
        const float* g = grad.of(c, y) + (long)x * grad.batch;
        float* t = to.of(c, y * stride) + (long)x * stride * to.batch;
        for (int b = 0; b < to.batch; b++) t[b] += g[b];
      }
}

static void clear(const Image& image) {
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < image.height; y++)
      memset(image.of(c, y), 0, image.row_floats() * sizeof(float));
}

// ---- sums over a channel ----------------------------------------------------------------------

// In lanes along each row, then in double over the rows: a fixed order, and precise.
template <class Term>
INLINE double channel_sum(const Image& image, Term term) {
  double total = 0;
  for (int y = 0; y < image.height; y++) {
    Lanes<LANES> even = all<LANES>(0), odd = even;
    const long count = image.row_floats();
    long i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
      even = even + term(y, i, LANES);
      odd = odd + term(y, i + LANES, LANES);
    }
    pieces(count - i, [&](long at, int n) { even = even + term(y, i + at, n); });
    total += sum(even + odd);
  }
  return total;
}

static void bias_gradient(const Image& grad, float* to) {
  for (int c = 0; c < grad.channels; c++)
    to[c] = (float)channel_sum(grad, [&](int y, long i, int n) { return load_piece(grad.of(c, y) + i, n); });
}

}  // namespace gossamer
