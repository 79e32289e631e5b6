// Vectors of floats. A block of a batch is one `Lanes<W>`: W examples side by side.
//
// Sums over a batch always go through sixteen lanes, whatever the processor has: two registers of
// AVX2 stand for one of AVX-512. With explicit fused multiply-adds (and contraction switched off)
// both give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

namespace gossamer {

#if defined(__AVX512F__)
constexpr int NATIVE = 16;     // floats in a register
constexpr int REGISTERS = 24;  // for accumulators; the others hold operands
#elif defined(__AVX2__)
constexpr int NATIVE = 8;
constexpr int REGISTERS = 12;
#elif defined(__ARM_NEON)
constexpr int NATIVE = 4;
constexpr int REGISTERS = 24;
#else
constexpr int NATIVE = 4;
constexpr int REGISTERS = 12;
#endif
constexpr int LANES = 16;  // of sums over a batch, on every processor

template <int W>
struct Register {
  typedef float type __attribute__((vector_size(W * 4)));
  typedef float memory __attribute__((vector_size(W * 4), aligned(4), may_alias));
  typedef int32_t index __attribute__((vector_size(W * 4)));
};
template <>
struct Register<1> {
  typedef float type;
  typedef float memory __attribute__((may_alias));
};

template <int W>
struct Lanes {
  static constexpr int width = W < NATIVE ? W : NATIVE;
  static constexpr int parts = W / width;
  typename Register<width>::type part[parts];
};

template <int W>
INLINE Lanes<W> load(const float* from) {
  Lanes<W> v;
  for (int i = 0; i < v.parts; i++)
    v.part[i] = *(const typename Register<Lanes<W>::width>::memory*)(from + i * v.width);
  return v;
}

template <int W>
INLINE void store(float* to, const Lanes<W>& v) {
  for (int i = 0; i < v.parts; i++)
    *(typename Register<Lanes<W>::width>::memory*)(to + i * v.width) = v.part[i];
}

template <int W>
INLINE Lanes<W> all(float x) {
  Lanes<W> v;
  for (int i = 0; i < v.parts; i++) v.part[i] = x - typename Register<Lanes<W>::width>::type{};
  return v;
}

// a * b + c, rounded once where the processor can.
INLINE float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_NEON)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
template <int W>
INLINE typename Register<W>::type fused_register(typename Register<W>::type a,
                                                 typename Register<W>::type b,
                                                 typename Register<W>::type c) {
  if constexpr (W == 1) {
    return fused(a, b, c);
  } else {
#if defined(__AVX512F__)
    if constexpr (W == 16) return (typename Register<W>::type)_mm512_fmadd_ps(a, b, c);
#endif
#if defined(__FMA__)
    if constexpr (W == 8) return (typename Register<W>::type)_mm256_fmadd_ps(a, b, c);
    if constexpr (W == 4) return (typename Register<W>::type)_mm_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    if constexpr (W == 4)
      return (typename Register<W>::type)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
    return a * b + c;
  }
}
template <int W>
INLINE void add_product(Lanes<W>& sum, const Lanes<W>& a, const Lanes<W>& b) {
  for (int i = 0; i < sum.parts; i++)
    sum.part[i] = fused_register<Lanes<W>::width>(a.part[i], b.part[i], sum.part[i]);
}

template <int W>
INLINE Lanes<W> operator+(Lanes<W> a, const Lanes<W>& b) {
  for (int i = 0; i < a.parts; i++) a.part[i] += b.part[i];
  return a;
}
template <int W>
INLINE Lanes<W> operator-(Lanes<W> a, const Lanes<W>& b) {
  for (int i = 0; i < a.parts; i++) a.part[i] -= b.part[i];
  return a;
}
template <int W>
INLINE Lanes<W> operator*(Lanes<W> a, const Lanes<W>& b) {
  for (int i = 0; i < a.parts; i++) a.part[i] *= b.part[i];
  return a;
}
template <int W>
INLINE Lanes<W> positive_part(Lanes<W> v) {
  const typename Register<Lanes<W>::width>::type zero = {};
  for (int i = 0; i < v.parts; i++) v.part[i] = v.part[i] > 0.f ? v.part[i] : zero;
  return v;
}
template <int W>
INLINE Lanes<W> where_positive(const Lanes<W>& sign, Lanes<W> v) {
  const typename Register<Lanes<W>::width>::type zero = {};
  for (int i = 0; i < v.parts; i++) v.part[i] = sign.part[i] > 0.f ? v.part[i] : zero;
  return v;
}
// The first `count` lanes become zero: lanes that an earlier block has counted.
template <int W>
INLINE Lanes<W> without_first(Lanes<W> v, int count) {
  if constexpr (W > 1) {
    if (!count) return v;
    constexpr int width = Lanes<W>::width;
    const typename Register<width>::type zero = {};
    for (int i = 0; i < v.parts; i++) {
      typename Register<width>::index lane;
      for (int j = 0; j < width; j++) lane[j] = i * width + j;
      v.part[i] = lane >= count ? v.part[i] : zero;
    }
  }
  return v;
}

// ---- sums over lanes: halves are added until one is left --------------------------------------

template <int W, int... I>
INLINE auto low_half(typename Register<W>::type v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, I...);
}
template <int W, int... I>
INLINE auto high_half(typename Register<W>::type v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I + W / 2)...);
}
template <int W>
INLINE float sum_register(typename Register<W>::type v) {
  if constexpr (W == 1) {
    return v;
  } else if constexpr (W == 2) {
    return v[0] + v[1];
  } else {
    typedef std::make_integer_sequence<int, W / 2> Half;
    typedef typename Register<W / 2>::type Small;
    return sum_register<W / 2>((Small)low_half<W>(v, Half()) + (Small)high_half<W>(v, Half()));
  }
}
// Sixteen lanes in one register of at most eight, or in two of four.
template <int W>
INLINE void fold_to(const Lanes<W>& v, typename Register<(W < 8 ? W : 8)>::type& out) {
  typedef typename Register<(W < 8 ? W : 8)>::type Out;
  if constexpr (W <= 8 && Lanes<W>::parts == 1) {
    out = v.part[0];
  } else if constexpr (Lanes<W>::parts == 1) {
    typedef std::make_integer_sequence<int, W / 2> Half;
    out = (Out)low_half<W>(v.part[0], Half()) + (Out)high_half<W>(v.part[0], Half());
  } else if constexpr (W == 16 && Lanes<W>::width == 8) {
    out = v.part[0] + v.part[1];
  } else {
    float lane[W];
    store<W>(lane, v);
    if constexpr (W == 16) {
      out = *(const Register<8>::memory*)lane + *(const Register<8>::memory*)(lane + 8);
    } else {
      out = *(const Register<8>::memory*)lane;
    }
  }
}
template <int W>
INLINE float sum(const Lanes<W>& v) {
  typename Register<(W < 8 ? W : 8)>::type folded;
  fold_to<W>(v, folded);
  return sum_register<(W < 8 ? W : 8)>(folded);
}

// Eight vectors become one that holds their sums, each added in the order of `sum_register<8>`.
template <int STEP, bool HIGH, int... I>
INLINE Register<8>::type pairs(Register<8>::type a, Register<8>::type b,
                               std::integer_sequence<int, I...>) {
  return (Register<8>::type)__builtin_shufflevector(
      a, b, ((I / (STEP / 2)) * STEP + HIGH * (STEP / 2) + I % (STEP / 2))...);
}
template <int STEP>
INLINE Register<8>::type add_halves(Register<8>::type a, Register<8>::type b) {
  typedef std::make_integer_sequence<int, 8> All;
  return pairs<STEP, false>(a, b, All()) + pairs<STEP, true>(a, b, All());
}
template <class Vector>
INLINE Register<8>::type sums_of_eight(Vector at) {
  auto four = [&](int k) __attribute__((always_inline)) {
    return add_halves<4>(add_halves<8>(at(k), at(k + 1)), add_halves<8>(at(k + 2), at(k + 3)));
  };
  return add_halves<2>(four(0), four(4));
}

INLINE Register<8>::type load_eight(const float* from) { return *(const Register<8>::memory*)from; }
INLINE void store_eight(float* to, Register<8>::type v) { *(Register<8>::memory*)to = v; }

// ---- blocks of a batch ------------------------------------------------------------------------

// Calls `work.operator()<W, N>(first, skip)` for blocks of N vectors of W lanes that cover a batch.
// The last block may overlap the one before, so nothing is read or written outside of the batch:
// `skip` says how many of its lanes an earlier block had, for sums. `MOST` bounds N.
template <int W, int MOST, class Work>
INLINE void blocks(int batch, Work work) {
  int at = 0;
  if (MOST >= 4)
    for (; at + 4 * W <= batch; at += 4 * W) work.template operator()<W, (MOST < 4 ? MOST : 4)>(at, 0);
  if (MOST >= 2)
    for (; at + 2 * W <= batch; at += 2 * W) work.template operator()<W, (MOST < 2 ? MOST : 2)>(at, 0);
  for (; at + W <= batch; at += W) work.template operator()<W, 1>(at, 0);
  const int rest = batch - at;
  if (rest == 0) return;
  auto last = [&]<int V>() __attribute__((always_inline)) {
    if (rest > V) work.template operator()<V, 1>(at, 0);
    work.template operator()<V, 1>(batch - V, rest > V ? 2 * V - rest : V - rest);
  };
  if (rest > 8 && batch >= 16 && W == 16) last.template operator()<(W < 16 ? W : 16)>();
  else if (rest > 4 && batch >= 8) last.template operator()<(W < 8 ? W : 8)>();
  else if (batch >= 4) last.template operator()<4>();
  else
    for (; at < batch; at++) work.template operator()<1, 1>(at, 0);
}

}  // namespace gossamer
