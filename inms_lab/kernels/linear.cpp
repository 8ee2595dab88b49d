// y = x w^T + bias for few and for many rows. Each (row, output) is one chain of multiply-adds over
// the columns in their order, however many rows there are: so a row's bits do not depend on the rows
// beside it. Weights are read where they lie, once: nothing is packed beforehand, nothing copied.
#include <omp.h>

#include "lanes.h"

namespace {

constexpr int MOST = 12;      // rows whose sums stay in registers
constexpr int DEPTH = 192;    // columns that are transposed at a time
constexpr int PANEL = 192;    // rows for which a piece of the weights is kept

// Few rows: 16 outputs at a time, transposed on the way through the registers.
template <int M>
void few(const float* x, const float* w, int64_t columns, int outputs, const float* bias, float* y,
         int64_t num_outputs) {
  Lanes sum[M] = {};
  for (int64_t k = 0; k < columns; k += WIDTH) {
    Lanes t[WIDTH];
    for (int i = 0; i < WIDTH; i++)  // the next 16 rows of w, in the order of memory
      __builtin_prefetch(w + WIDTH * columns + (k + i) * WIDTH, 0, 2);
    const int depth = std::min<int64_t>(WIDTH, columns - k);
    square(w + k, columns, outputs, depth, t);
    if (depth == WIDTH) {
#pragma GCC unroll 16
      for (int i = 0; i < WIDTH; i++)
        for (int m = 0; m < M; m++) sum[m] += x[m * columns + k + i] * t[i];
    } else {
      for (int i = 0; i < depth; i++)
        for (int m = 0; m < M; m++) sum[m] += x[m * columns + k + i] * t[i];
    }
  }
  const Lanes add = bias ? some(bias, outputs) : Lanes{};
  for (int m = 0; m < M; m++) {
    sum[m] += add;
    std::memcpy(y + m * num_outputs, &sum[m], sizeof(float) * outputs);
  }
}

// Many rows: a piece of w is transposed once and used for all of them.
template <int M>
void many(const float* x, int64_t columns, const float* piece, int64_t depth, float* sums) {
  Lanes sum[M][2];
  for (int m = 0; m < M; m++)
    for (int h = 0; h < 2; h++) sum[m][h] = load(sums + (2 * m + h) * WIDTH);
  for (int64_t k = 0; k < depth; k++) {
    const Lanes left = load(piece + 2 * k * WIDTH), right = load(piece + (2 * k + 1) * WIDTH);
    for (int m = 0; m < M; m++) {
      sum[m][0] += x[m * columns + k] * left;
      sum[m][1] += x[m * columns + k] * right;
    }
  }
  for (int m = 0; m < M; m++)
    for (int h = 0; h < 2; h++) store(sums + (2 * m + h) * WIDTH, sum[m][h]);
}

void panel(const float* x, const float* w, int64_t rows, int64_t columns, int outputs,
           const float* bias, float* y, int64_t num_outputs) {
  alignas(64) static thread_local float piece[DEPTH * 2 * WIDTH], sums[PANEL * 2 * WIDTH];
  std::memset(sums, 0, sizeof(float) * rows * 2 * WIDTH);
  for (int64_t k = 0; k < columns; k += DEPTH) {
    const int64_t depth = std::min<int64_t>(DEPTH, columns - k);
    for (int h = 0; h < 2; h++)
      for (int64_t i = 0; i < depth; i += WIDTH) {
        Lanes t[WIDTH];
        const int left = std::max(0, outputs - h * WIDTH), wide = std::min<int64_t>(WIDTH, depth - i);
        square(w + h * WIDTH * columns + k + i, columns, left, wide, t);
        for (int j = 0; j < wide; j++) store(piece + (2 * (i + j) + h) * WIDTH, t[j]);
      }
    for (int64_t r = 0; r < rows; r += MOST) {
#define MANY(M) many<M>(x + r * columns + k, columns, piece, depth, sums + r * 2 * WIDTH)
      BY_COUNT(std::min<int64_t>(MOST, rows - r), MANY)
#undef MANY
    }
  }
  for (int64_t r = 0; r < rows; r++)
    for (int i = 0; i < outputs; i++)
      y[r * num_outputs + i] = sums[r * 2 * WIDTH + i] + (bias ? bias[i] : 0.0f);
}

}  // namespace

// x [rows, columns], w [outputs, columns], bias [outputs] or null, y [rows, outputs]; contiguous.
extern "C" void inms_linear(const float* x, const float* w, const float* bias, float* y, int64_t rows,
                            int64_t outputs, int64_t columns, int threads) {
  const int64_t wide = rows <= MOST ? WIDTH : 2 * WIDTH, pieces = (outputs + wide - 1) / wide;
#pragma omp parallel num_threads(threads)
  {
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    for (int64_t r = 0; r < rows; r += PANEL)
      for (int64_t p = pieces * me / all; p < pieces * (me + 1) / all; p++) {
        const int64_t first = p * wide;
        const int count = std::min<int64_t>(wide, outputs - first);
        const float* add = bias ? bias + first : nullptr;
#define FEW(M) few<M>(x, w + first * columns, columns, count, add, y + first, outputs)
        if (rows <= MOST)
          BY_COUNT(rows, FEW)
        else
          panel(x + r * columns, w + first * columns, std::min<int64_t>(PANEL, rows - r), columns,
                count, add, y + r * outputs + first, outputs);
#undef FEW
      }
  }
}
