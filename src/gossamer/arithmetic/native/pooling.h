// Max and average pooling, with the ReLU that follows.
#pragma once
#include "image.h"

namespace gossamer {

struct Window {
  int height, width, stride_y, stride_x, pad_y, pad_x;

  // The part of a window that lies within the image.
  int first(int at, int stride, int pad) const { return std::max(0, pad - at * stride); }
  int last(int at, int stride, int pad, int size, int image) const {
    return std::min(size, image + pad - at * stride);
  }
};

// Vectors of the processor's own width and less, and the choices of their lanes.
template <int W>
struct Pooled {
  typedef typename Register<W>::type Vector;
  typedef typename Register<W>::memory Memory;
  typedef int32_t Choice __attribute__((vector_size(W * 4)));
  typedef uint8_t Bytes __attribute__((vector_size(W)));
  typedef uint8_t BytesMemory __attribute__((vector_size(W), aligned(1), may_alias));
};
template <>
struct Pooled<1> {
  typedef float Vector;
  typedef Register<1>::memory Memory;
  typedef int32_t Choice;
};

constexpr int CUT = 255;  // instead of a place in the window: ReLU made the output zero

// Where an output pixel's window lies in the image.
struct Covered {
  int top, bottom, left, right;

  Covered(const Window& w, int y, int x, int height, int width)
      : top(w.first(y, w.stride_y, w.pad_y)), bottom(w.last(y, w.stride_y, w.pad_y, w.height, height)),
        left(w.first(x, w.stride_x, w.pad_x)), right(w.last(x, w.stride_x, w.pad_x, w.width, width)) {}
};

template <int W>
INLINE void pool_lanes(const float* from, long row, long pixel, const Window& w, const Covered& in, bool with_relu,
                       float* to, uint8_t* place) {
  typedef Pooled<W> P;
  typename P::Vector best = *(const typename P::Memory*)(from + in.top * row + in.left * pixel);
  typename P::Choice where = typename P::Choice{} + (in.top * w.width + in.left);
  for (int i = in.top; i < in.bottom; i++)
    for (int j = in.left; j < in.right; j++) {
      const typename P::Vector v = *(const typename P::Memory*)(from + i * row + j * pixel);
      const auto larger = v > best;
      best = larger ? v : best;
      where = larger ? typename P::Choice{} + (i * w.width + j) : where;
    }
  if (with_relu) {
    const auto keep = best > 0.f;
    best = keep ? best : typename P::Vector{};
    where = keep ? where : typename P::Choice{} + CUT;
  }
  *(typename P::Memory*)to = best;
  if constexpr (W == 1) *place = (uint8_t)where;
  else *(typename P::BytesMemory*)place = __builtin_convertvector(where, typename P::Bytes);
}

// The largest of each window; `chosen` receives its place, for the backward pass.
static void max_pool(const Image& in, const Image& out, const Window& w, bool with_relu, uint8_t* chosen) {
  const int batch = in.batch;
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++)
      for (int x = 0; x < out.width; x++) {
        const Covered covered(w, y, x, in.height, in.width);
        const float* from = in.of(c, 0) + (long)(y * w.stride_y - w.pad_y) * in.row() + (long)(x * w.stride_x - w.pad_x) * batch;
        float* to = out.of(c, y) + (long)x * batch;
        uint8_t* place = chosen + (((long)c * out.height + y) * out.width + x) * batch;
        blocks<NATIVE, 1>(batch, [&]<int W, int N>(int b, int) __attribute__((always_inline)) {
          pool_lanes<W>(from + b, in.row(), batch, w, covered, with_relu, to + b, place + b);
        });
      }
}

template <int W>
INLINE void pool_lanes_back(const float* grad, const uint8_t* place, const Window& w, const Covered& in, bool add, int skip,
                            long row, long pixel, float* to) {
  typedef Pooled<W> P;
  const Lanes<W> v = without_first(load<W>(grad), add ? skip : 0);
  typename P::Choice where;
  if constexpr (W == 1) where = *place;
  else where = __builtin_convertvector(*(const typename P::BytesMemory*)place, typename P::Choice);
  for (int i = in.top; i < in.bottom; i++)
    for (int j = in.left; j < in.right; j++) {
      typename P::Memory& at = *(typename P::Memory*)(to + i * row + j * pixel);
      const typename P::Vector part = where == i * w.width + j ? v.part[0] : typename P::Vector{};
      at = add ? at + part : part;
    }
}

// Whether every pixel of an image lies in one window, so that gradients need not be added up.
INLINE bool windows_tile(const Window& w, const Image& image, const Image& pooled) {
  return !w.pad_y && !w.pad_x && w.stride_y == w.height && w.stride_x == w.width &&
         pooled.height * w.height == image.height && pooled.width * w.width == image.width;
}

// With `add`, `to` is cleared before or holds other gradients; without it, windows must tile the image.
static void max_pool_backward(const Image& grad, const Image& to, const Window& w, const uint8_t* chosen, bool add) {
  const int batch = to.batch;
  for (int c = 0; c < grad.channels; c++)
    for (int y = 0; y < grad.height; y++)
      for (int x = 0; x < grad.width; x++) {
        const Covered covered(w, y, x, to.height, to.width);
        const float* g = grad.of(c, y) + (long)x * batch;
        float* t = to.of(c, 0) + (long)(y * w.stride_y - w.pad_y) * to.row() + (long)(x * w.stride_x - w.pad_x) * batch;
        const uint8_t* place = chosen + (((long)c * grad.height + y) * grad.width + x) * batch;
        blocks<NATIVE, 1>(batch, [&]<int W, int N>(int b, int skip) __attribute__((always_inline)) {
          pool_lanes_back<W>(g + b, place + b, w, covered, add, skip, to.row(), batch, t + b);
        });
      }
}

static void average_pool(const Image& in, const Image& out, const Window& w, bool with_relu) {
  const Lanes<LANES> share = all<LANES>(1.f / (w.height * w.width));
  for (int c = 0; c < out.channels; c++)
    for (int y = 0; y < out.height; y++)
      for (int x = 0; x < out.width; x++)
        pieces(in.batch, [&](long b, int n) {
          Lanes<LANES> total = all<LANES>(0);
          for (int i = 0; i < w.height; i++)
            for (int j = 0; j < w.width; j++)
              total = total + load_piece(in.of(c, y * w.stride_y + i) + (long)(x * w.stride_x + j) * in.batch + b, n);
          total = total * share;
          store_piece(out.of(c, y) + (long)x * out.batch + b, with_relu ? positive_part(total) : total, n);
        });
}

static void average_pool_backward(const Image& grad, const Image& to, const Window& w) {
  const Lanes<LANES> share = all<LANES>(1.f / (w.height * w.width));
  for (int c = 0; c < grad.channels; c++)
    for (int y = 0; y < grad.height; y++)
      for (int x = 0; x < grad.width; x++)
        pieces(to.batch, [&](long b, int n) {
          const Lanes<LANES> v = load_piece(grad.of(c, y) + (long)x * to.batch + b, n) * share;
          for (int i = 0; i < w.height; i++)
            for (int j = 0; j < w.width; j++) {
              float* t = to.of(c, y * w.stride_y + i) + (long)(x * w.stride_x + j) * to.batch + b;
              store_piece(t, load_piece(t, n) + v, n);
            }
        });
}

}  // namespace gossamer
