// What rows of queries do with the tokens of one tile: scores, their softmax, sums of values.
//
// A row's bits do not depend on the rows beside it. Memory is asked for ahead of its use, a little with
// every step: in one go it would hold up everything else.
#pragma once
#include <cmath>

#include "lanes.h"

namespace {

constexpr int ROWS = 6;      // query rows that meet keys, and values, together
constexpr int GROUPS = 2;    // times 16 keys that they meet together
constexpr int AHEAD = 32;    // tokens by which keys and values are asked for before they are met

#define BY_ROWS(count, body)                                                                    \
  switch (count) {                                                                              \
    CASE(1, body) CASE(2, body) CASE(3, body) CASE(4, body) CASE(5, body) CASE(6, body)         \
  }

// scores[m][16 G] of M queries with G times 16 keys: two chains over the dimensions, the even and the
// odd ones. Meanwhile the keys next[0 .. asked) are asked for.
template <int M, int G>
INLINE void scores_of(const float* q, const float* keys, int64_t dim, float* scores, int64_t stride,
               const float* const* next, int asked) {
  Lanes even[M][G] = {}, odd[M][G] = {};
  for (int64_t from = 0; from < dim; from += WIDTH) {
    for (int i = 0; i < asked; i++) __builtin_prefetch(next[i] + from, 0, 2);
    for (int64_t d = from; d < from + WIDTH; d += 2) {
      Lanes a[G], b[G];
      for (int g = 0; g < G; g++) {
        a[g] = load(keys + (g * dim + d) * WIDTH);
        b[g] = load(keys + (g * dim + d + 1) * WIDTH);
      }
      for (int m = 0; m < M; m++)
        for (int g = 0; g < G; g++) {
          even[m][g] += q[m * dim + d] * a[g];
          odd[m][g] += q[m * dim + d + 1] * b[g];
        }
    }
  }
  for (int m = 0; m < M; m++)
    for (int g = 0; g < G; g++) store(scores + m * stride + g * WIDTH, even[m][g] + odd[m][g]);
}

// The same for few queries and `count` of 16 keys, transposed on their way through the registers.
template <int M>
INLINE void few_scores_of(const float* q, const float* const* key, int count, int64_t dim, float* scores,
                   int64_t stride) {
  Lanes even[M] = {}, odd[M] = {};
  for (int64_t d = 0; d < dim; d += WIDTH) {
    for (int i = 0; i < WIDTH; i++) __builtin_prefetch(key[AHEAD + i] + d, 0, 2);
    Lanes t[WIDTH];
    turned([&](int i) { return key[i] + d; }, count, WIDTH, t);
#pragma GCC unroll 8
    for (int i = 0; i < WIDTH; i += 2)
      for (int m = 0; m < M; m++) {
        even[m] += q[m * dim + d + i] * t[i];
        odd[m] += q[m * dim + d + i + 1] * t[i + 1];
      }
  }
  for (int m = 0; m < M; m++) store(scores + m * stride, even[m] + odd[m]);
}

// out[m][from .. from + 16 H) = scale[m] * sum of p[m][t] * value[t], one chain over the tokens each.
template <int M, int H, bool ASK>
INLINE void values_of(const float* p, int64_t stride, const float* const* value, int64_t from, int64_t count,
               const float* scale, float* const* out) {
  Lanes sum[M][H] = {};
  for (int64_t t = 0; t < count; t++) {
    Lanes v[H];
    for (int h = 0; h < H; h++) {
      if (ASK) __builtin_prefetch(value[t + AHEAD] + from + h * WIDTH, 0, 2);
      v[h] = load(value[t] + from + h * WIDTH);
    }
    for (int m = 0; m < M; m++)
      for (int h = 0; h < H; h++) sum[m][h] += p[m * stride + t] * v[h];
  }
  for (int m = 0; m < M; m++)
    for (int h = 0; h < H; h++) store(out[m] + from + h * WIDTH, sum[m][h] * scale[m]);
}

// Scores of one row in [0, seen) become weights; gives 1 / their sum and the log-sum-exp.
float softmax(float* scores, int64_t seen, int64_t wide, float* lse) {
  for (int64_t t = seen; t < wide; t++) scores[t] = -INFINITY;
  Lanes most = load(scores);
  for (int64_t t = WIDTH; t < wide; t += WIDTH) {
    const Lanes x = load(scores + t);
    most = x > most ? x : most;
  }
  float top = most[0];
  for (int i = 1; i < WIDTH; i++) top = std::max(top, most[i]);
  Lanes sum = {};
  for (int64_t t = 0; t < wide; t += WIDTH) {
    const Lanes e = exp_of(load(scores + t) - top);
    sum += e;
    store(scores + t, e);
  }
  const float total = sum_of(sum);
  *lse = top + std::log(total);
  return 1.0f / total;
}

// Keys [count <= 16, dim] transposed: [dim, 16].
void turn(const float* const* key, int count, int64_t dim, float* keys) {
  for (int64_t d = 0; d < dim; d += WIDTH) {
    Lanes t[WIDTH];
    turned([&](int i) { return key[i] + d; }, count, WIDTH, t);
    for (int i = 0; i < WIDTH; i++) store(keys + (d + i) * WIDTH, t[i]);
  }
}

}  // namespace
