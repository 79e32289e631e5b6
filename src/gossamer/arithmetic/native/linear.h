// Linear layers at the non-zeros: activations are [feature][example].
#pragma once
#include "dense.h"

namespace gossamer {

// Partial sums of one output: a long chain of additions would wait for each of them.
constexpr int CHAINS = 4;

// out[r, :] = bias[r] + sum over the non-zeros of row r of value * in[offset, :].
static void sparse_product(const List& list, int rows, int batch, const float* values,
                           const float* bias, const float* in, bool add, bool relu, float* out) {
  blocks<NATIVE, 2>(batch, [&]<int W, int N>(int b, int skip) {
    for (int r = 0; r < rows; r++) {
      Lanes<W> sum[CHAINS][N];
      int k = list.starts[r];
      const int end = list.starts[r + 1];
      for (int c = 0; c < CHAINS; c++)
        for (int n = 0; n < N; n++) sum[c][n] = all<W>(c || !bias ? 0.f : bias[r]);
      auto take = [&](int c, int k) __attribute__((always_inline)) {
        const float* from = in + (long)list.offsets[k] * batch + b;
        const Lanes<W> weight = all<W>(values[k]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) add_product(sum[c][n], weight, load<W>(from + n * W));
      };
      for (; k + CHAINS <= end; k += CHAINS)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++) take(c, k + c);
      for (; k < end; k++) take(0, k);
      for (int n = 0; n < N; n++) {
        float* to = out + (long)r * batch + b + n * W;
        Lanes<W> v = (sum[0][n] + sum[1][n]) + (sum[2][n] + sum[3][n]);
        if (add) v = without_first(v, skip) + load<W>(to);
        if (relu) v = positive_part(v);
        store<W>(to, v);
      }
    }
  });
}

// to[k] = sum over the batch of grad[row of k, :] * in[offset of k, :].
static void sparse_product_gradient(const List& list, int rows, int batch, const float* grad,
                                    const float* in, float* to) {
  bool add = false;
  blocks<LANES, 4>(batch, [&]<int W, int N>(int b, int skip) {
    for (int r = 0; r < rows; r++) {
      Lanes<W> g[N];
      for (int n = 0; n < N; n++) g[n] = without_first(load<W>(grad + (long)r * batch + b + n * W), skip);
      auto lanes = [&](int k) __attribute__((always_inline)) {
        const float* from = in + (long)list.offsets[k] * batch + b;
        Lanes<W> total = g[0] * load<W>(from);
#pragma GCC unroll 4
        for (int n = 1; n < N; n++) add_product(total, g[n], load<W>(from + n * W));
        return total;
      };
      int k = list.starts[r];
      const int end = list.starts[r + 1];
      if constexpr (W >= 8) {
        for (; k + 8 <= end; k += 8) {
          auto at = [&](int j) __attribute__((always_inline)) {
            Register<8>::type folded;
            fold_to<W>(lanes(k + j), folded);
            return folded;
          };
          const Register<8>::type sums = sums_of_eight(at);
          store_eight(to + k, add ? load_eight(to + k) + sums : sums);
        }
      }
      for (; k < end; k++) {
        const float one = sum(lanes(k));
        to[k] = add ? to[k] + one : one;
      }
    }
    add = true;
  });
}

}  // namespace gossamer
