// Matrix products, and what a decoder layer does around them; each function does a member's share.
//
// y = x w^T + bias for few and for many rows. Each (row, output) is a sum of chains of multiply-adds over
// DEPTH columns, in their order, however many rows there are: so a row's bits do not depend on the rows
// beside it. Weights are read where they lie, once: nothing is packed beforehand, nothing copied.
#pragma once
#include <cmath>

#include "lanes.h"
#include "team.h"

namespace {

constexpr int MOST = 12;      // rows whose sums stay in registers
constexpr int FEW = 24;       // rows up to which w is transposed again for every 12
constexpr int DEPTH = 192;    // columns of a chain, transposed at a time
constexpr int PANEL = 256;    // rows for which a piece of the weights is kept

// Few rows: 16 outputs at a time, transposed on the way through the registers.
template <int M>
void few(const float* x, const float* w, int64_t columns, int outputs, const float* bias, float* y,
         int64_t num_outputs) {
  Lanes total[M] = {};
  for (int64_t chain = 0; chain < columns; chain += DEPTH) {
    Lanes sum[M] = {};
    const int64_t end = std::min(chain + DEPTH, columns);
    for (int64_t k = chain; k < end; k += WIDTH) {
      Lanes t[WIDTH];
      for (int i = 0; i < WIDTH; i++)  // the next 16 rows of w, in the order of memory
        __builtin_prefetch(w + WIDTH * columns + (k + i) * WIDTH, 0, 2);
      const int depth = std::min<int64_t>(WIDTH, end - k);
      turned([&](int i) { return w + k + i * columns; }, outputs, depth, t);
      if (depth == WIDTH) {
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++)
          for (int m = 0; m < M; m++) sum[m] += x[m * columns + k + i] * t[i];
      } else {
        for (int i = 0; i < depth; i++)
          for (int m = 0; m < M; m++) sum[m] += x[m * columns + k + i] * t[i];
      }
    }
    for (int m = 0; m < M; m++) total[m] += sum[m];
  }
  const Lanes add = bias ? some(bias, outputs) : Lanes{};
  for (int m = 0; m < M; m++) {
    total[m] += add;
    std::memcpy(y + m * num_outputs, &total[m], sizeof(float) * outputs);
  }
}

// Many rows: a piece of w is transposed once and used for all of them.
template <int M>
void many(const float* x, int64_t columns, const float* piece, int64_t depth, float* totals) {
  Lanes sum[M][2] = {};
  for (int64_t k = 0; k < depth; k++) {
    const Lanes left = load(piece + 2 * k * WIDTH), right = load(piece + (2 * k + 1) * WIDTH);
    for (int m = 0; m < M; m++) {
      sum[m][0] += x[m * columns + k] * left;
      sum[m][1] += x[m * columns + k] * right;
    }
  }
  for (int m = 0; m < M; m++)
    for (int h = 0; h < 2; h++) {
      float* at = totals + (2 * m + h) * WIDTH;
      store(at, load(at) + sum[m][h]);
    }
}

void panel(const float* x, const float* w, int64_t rows, int64_t columns, int outputs,
           const float* bias, float* y, int64_t num_outputs) {
  alignas(64) static thread_local float piece[DEPTH * 2 * WIDTH], totals[PANEL * 2 * WIDTH];
  std::memset(totals, 0, sizeof(float) * rows * 2 * WIDTH);
  for (int64_t k = 0; k < columns; k += DEPTH) {
    const int64_t depth = std::min<int64_t>(DEPTH, columns - k);
    const float* next = k + DEPTH < columns ? w + k + DEPTH : w + 2 * WIDTH * columns;
    for (int h = 0; h < 2; h++)
      for (int64_t i = 0; i < depth; i += WIDTH) {
        Lanes t[WIDTH];
        const int left = std::max(0, outputs - h * WIDTH), wide = std::min<int64_t>(WIDTH, depth - i);
        const float* from = w + h * WIDTH * columns + k + i;
        turned([&](int j) { return from + j * columns; }, left, wide, t);
        for (int j = 0; j < WIDTH; j++)
          __builtin_prefetch(next + (h * WIDTH + j) * columns + i, 0, 2);
        for (int j = 0; j < wide; j++) store(piece + (2 * (i + j) + h) * WIDTH, t[j]);
      }
    for (int64_t r = 0; r < rows; r += MOST) {
#define MANY(M) many<M>(x + r * columns + k, columns, piece, depth, totals + r * 2 * WIDTH)
      BY_COUNT(std::min<int64_t>(MOST, rows - r), MANY)
#undef MANY
    }
  }
  for (int64_t r = 0; r < rows; r++)
    for (int i = 0; i < outputs; i++)
      y[r * num_outputs + i] = totals[r * 2 * WIDTH + i] + (bias ? bias[i] : 0.0f);
}

// A member's share of y = x w^T + bias, plus `base` where there is one: x [rows, columns],
// w [outputs, columns], y and base [rows, outputs].
void product(const Member& m, const float* x, const float* w, const float* bias, float* y, int64_t rows,
             int64_t outputs, int64_t columns, const float* base = nullptr) {
  const bool is_few = rows <= FEW;
  const int64_t wide = is_few ? WIDTH : 2 * WIDTH, pieces = (outputs + wide - 1) / wide;
  const int64_t group = is_few ? MOST : PANEL;
  const int64_t begin = m.begin(pieces), end = m.end(pieces);
  const auto one = [&](int64_t p, int64_t r) {
    const int64_t first = p * wide, count = std::min(group, rows - r);
    const int out = std::min(wide, outputs - first);
    const float *from = x + r * columns, *at = w + first * columns, *add = bias ? bias + first : bias;
    float* to = y + r * outputs + first;
#define SOME(M) few<M>(from, at, columns, out, add, to, outputs)
    if (is_few)
      BY_COUNT(count, SOME)
    else
      panel(from, at, count, columns, out, add, to, outputs);
  };
  if (is_few) {  // the rows inside: their outputs' weights are in the cache the second time
    for (int64_t p = begin; p < end; p++)
      for (int64_t r = 0; r < rows; r += group) one(p, r);
  } else {
    for (int64_t r = 0; r < rows; r += group)
      for (int64_t p = begin; p < end; p++) one(p, r);
  }
  if (base)
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = begin * wide; i < std::min(end * wide, outputs); i++)
        y[r * outputs + i] += base[r * outputs + i];
}

// x / (1 + e^-x)
Lanes silu(Lanes x) {
  const Lanes zero = {}, e = exp_of(x < 0.0f ? x : zero - x);
  return x * ((x < 0.0f ? e : zero + 1.0f) / (e + 1.0f));
}

// A head at its position: the halves of its first `turned` numbers turn into each other.
void turn(float* head, const float* cos, const float* sin, int64_t turned) {
  const int64_t half = turned / 2;
  for (int64_t d = 0; d < half; d++) {
    const float a = head[d], b = head[d + half];
    head[d] = a * cos[d] - b * sin[d];
    head[d + half] = b * cos[d + half] + a * sin[d + half];
  }
}

// y = w x / sqrt(mean(x^2) + eps), row by row: x, y [rows, columns].
void norm(const Member& m, const float* x, const float* w, float eps, float* y, int64_t rows,
          int64_t columns) {
  for (int64_t r = m.begin(rows); r < m.end(rows); r++) {
    const float* from = x + r * columns;
    Lanes sum = {};
    for (int64_t k = 0; k < columns; k += WIDTH) {
      const Lanes v = some(from + k, std::min<int64_t>(WIDTH, columns - k));
      sum += v * v;
    }
    const float scale = 1.0f / std::sqrt(sum_of(sum) / columns + eps);
    for (int64_t k = 0; k < columns; k++) y[r * columns + k] = w[k] * (from[k] * scale);
  }
}

// y = down (silu(gate x) * up x), plus `base`: x, y, base [rows, columns]; `room` [2, rows, inner].
void gated(const Member& m, const float* x, const float* const* w, const float* const* bias, float* y,
           float* room, int64_t rows, int64_t inner, int64_t columns, const float* base = nullptr) {
  float* other = room + rows * inner;
  product(m, x, w[0], bias[0], room, rows, inner, columns);
  product(m, x, w[1], bias[1], other, rows, inner, columns);
  m.wait();
  const int64_t pieces = (rows * inner + WIDTH - 1) / WIDTH;
  for (int64_t i = m.begin(pieces) * WIDTH; i < std::min(m.end(pieces) * WIDTH, rows * inner); i += WIDTH) {
    const int left = std::min<int64_t>(WIDTH, rows * inner - i);
    const Lanes v = silu(some(room + i, left)) * some(other + i, left);
    std::memcpy(room + i, &v, sizeof(float) * left);
  }
  m.wait();
  product(m, room, w[2], bias[2], y, rows, columns, inner, base);
}

// What `heads` makes: how many query and kv heads, of how many numbers, of which how many are turned.
struct Heads {
  int64_t rows, columns, heads, kv_heads, dim, turned;
};

// Queries, keys and values of x [rows, columns], the first two at their positions: q [rows, heads, dim],
// k and v [rows, kv_heads, dim] behind each other in y. `w`, `bias`: of the three; cos, sin [rows, turned].
void heads(const Member& m, const Heads& s, const float* x, const float* const* w,
           const float* const* bias, const float* cos, const float* sin, float* y) {
  const int64_t count[3] = {s.heads, s.kv_heads, s.kv_heads};
  float* to = y;
  for (int i = 0; i < 3; to += s.rows * count[i++] * s.dim)
    product(m, x, w[i], bias[i], to, s.rows, count[i] * s.dim, s.columns);
  m.wait();
  const int64_t own = s.rows * s.heads, all = own + s.rows * s.kv_heads;
  for (int64_t i = m.begin(all); i < m.end(all); i++) {
    const int64_t row = i < own ? i / s.heads : (i - own) / s.kv_heads;
    turn(y + i * s.dim, cos + row * s.turned, sin + row * s.turned, s.turned);
  }
  m.wait();
}

}  // namespace
