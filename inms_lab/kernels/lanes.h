// Sixteen floats at a time, in the vector extension that g++ and clang++ share: the compiler turns
// it into whatever the processor has. Nothing here depends on how many rows are computed together.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

constexpr int WIDTH = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef float Loose __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(64)));

static inline Lanes load(const float* at) { return *(const Loose*)at; }
static inline void store(float* at, Lanes value) { *(Loose*)at = value; }
static inline Lanes some(const float* at, int count) {
  Lanes out = {};
  std::memcpy(&out, at, sizeof(float) * count);
  return out;
}

#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

// Rows of a 16 x 16 square become its columns.
static inline void transpose(Lanes r[WIDTH]) {
  Lanes t[WIDTH];
  for (int i = 0; i < 16; i += 2) {
    t[i] = PICK(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    t[i + 1] = PICK(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i = 0; i < 16; i += 4)
    for (int h = 0; h < 2; h++) {
      Lanes a = t[i + h], b = t[i + h + 2];
      r[i + 2 * h] = PICK(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[i + 2 * h + 1] = PICK(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  for (int i = 0; i < 4; i++) {
    Lanes part[2][2];
    for (int h = 0; h < 2; h++) {
      Lanes a = r[i + 8 * h], b = r[i + 8 * h + 4];
      part[h][0] = PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      part[h][1] = PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    for (int h = 0; h < 2; h++) {
      Lanes a = part[0][h], b = part[1][h];
      t[i + 4 * h] = PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      t[i + 4 * h + 8] = PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  }
  for (int i = 0; i < WIDTH; i++) r[i] = t[i];
}

// `columns` columns of `rows` rows that lie `stride` apart, transposed; what is missing is zero.
static inline void square(const float* at, int64_t stride, int rows, int columns, Lanes t[WIDTH]) {
  if (rows >= WIDTH && columns >= WIDTH)
    for (int i = 0; i < WIDTH; i++) t[i] = load(at + i * stride);
  else
    for (int i = 0; i < WIDTH; i++)
      t[i] = i < rows ? some(at + i * stride, std::min(columns, WIDTH)) : Lanes{};
  transpose(t);
}

// e^x for x <= 0, within 2 units in the last place; exactly 0 from -87 down, so for -inf too.
// x = n ln 2 + f, |f| <= ln 2 / 2; e^f by its series, whose terms beyond the seventh are below 2^-24.
static inline Lanes exp_of(Lanes x) {
  const Lanes zero = {};
  const Ints none = x < -87.0f;
  x = none ? zero : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  Lanes n = (x * 1.44269504f + magic) - magic;
  Lanes f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  Lanes e = zero + 1.0f / 5040;
  e = e * f + 1.0f / 720;
  e = e * f + 1.0f / 120;
  e = e * f + 1.0f / 24;
  e = e * f + 1.0f / 6;
  e = e * f + 0.5f;
  e = e * f + 1.0f;
  e = e * f + 1.0f;
  Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  return none ? zero : e * (Lanes)power;
}

static inline float sum_of(Lanes x) {
  for (int half = WIDTH / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

// `body(M)` with the constant M = count, 1 to 12.
#define CASE(m, body) case m: body(m); break;
#define BY_COUNT(count, body)                                                                   \
  switch (count) {                                                                              \
    CASE(1, body) CASE(2, body) CASE(3, body) CASE(4, body) CASE(5, body) CASE(6, body)         \
    CASE(7, body) CASE(8, body) CASE(9, body) CASE(10, body) CASE(11, body) CASE(12, body)      \
  }
