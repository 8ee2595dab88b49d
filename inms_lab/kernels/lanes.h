// Sixteen floats at a time, in the vector extension that g++ and clang++ share: the compiler turns
// it into whatever the processor has. Nothing here depends on how many rows are computed together.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

constexpr int WIDTH = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef float Loose __attribute__((vector_size(64), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(32)));
typedef float Quarter __attribute__((vector_size(16)));
typedef float LooseQuarter __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64)));

static inline Lanes load(const float* at) { return *(const Loose*)at; }
static inline void store(float* at, Lanes value) { *(Loose*)at = value; }
static inline Quarter quarter(const float* at) { return *(const LooseQuarter*)at; }
static inline Lanes some(const float* at, int count) {
  Lanes out = {};
  std::memcpy(&out, at, sizeof(float) * count);
  return out;
}

#define INLINE inline __attribute__((always_inline))
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

// out[j][i] = row(i)[j]: 16 rows of 16 numbers become columns. Four rows that are four apart fill a
// register in quarters, so that two steps within the quarters are left.
template <class Row>
static inline void turned(const Row& row, Lanes out[WIDTH]) {
  for (int c = 0; c < WIDTH; c += 4) {
    Lanes r[4];
    for (int i = 0; i < 4; i++) {
      const Half low = PICK(quarter(row(i) + c), quarter(row(i + 4) + c), 0, 1, 2, 3, 4, 5, 6, 7);
      const Half high = PICK(quarter(row(i + 8) + c), quarter(row(i + 12) + c), 0, 1, 2, 3, 4, 5, 6, 7);
      r[i] = PICK(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
    Lanes t[4];
    for (int i = 0; i < 4; i += 2) {
      t[i] = PICK(r[i], r[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
      t[i + 1] = PICK(r[i], r[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    for (int i = 0; i < 2; i++) {
      Lanes* to = out + c + 2 * i;
      to[0] = PICK(t[i], t[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      to[1] = PICK(t[i], t[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
}

// The first `columns` numbers of the first `rows` rows, turned; what is missing is zero.
template <class Row>
static inline void turned(const Row& row, int rows, int columns, Lanes out[WIDTH]) {
  if (rows >= WIDTH && columns >= WIDTH) return turned(row, out);
  float square[WIDTH * WIDTH] = {};
  for (int i = 0; i < std::min(rows, WIDTH); i++)
    std::memcpy(square + i * WIDTH, row(i), sizeof(float) * std::min(columns, WIDTH));
  turned([&](int i) { return square + i * WIDTH; }, out);
}

// e^x for x <= 0, within 2 units in the last place; exactly 0 from -87 down, so for -inf too.
// x = n ln 2 + f, |f| <= ln 2 / 2; e^f by the polynomial of degree 6 that is off by 2e-9 at most there.
static inline Lanes exp_of(Lanes x) {
  const Lanes zero = {};
  const Lanes rounded = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 is added: a whole number is left
  const Lanes n = rounded - 12582912.0f;
  const Lanes f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  Lanes e = zero + 1.38435594e-3f;
  e = e * f + 8.37423601e-3f;
  e = e * f + 4.16680074e-2f;
  e = e * f + 0.166664303f;
  e = e * f + 0.499999942f;
  e = e * f + 1.00000003f;
  e = e * f + 1.0f;
  const Words power = ((Words)rounded << 23) + (127u << 23);  // n is in the lowest bits of `rounded`
  return x < -87.0f ? zero : e * (Lanes)power;  // NaN stays NaN
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
