// Attention over tiles that lie anywhere: every tile is read once for all rows that hold it.
//
// A tile's keys are transposed once and meet the query rows of all its readers; the result of each
// (row, tile) is the softmax over that tile alone with its log-sum-exp. Then the tiles of each row
// are joined by a binary tree over their logical numbers. Every (row, tile) is computed by itself
// and in one order, so a row's bits do not depend on who else is served, nor on where blocks lie.
// Source: online softmax (Milakov and Gimelshein 2018), joined as in FlashAttention's split form.
#include <omp.h>

#include <cmath>
#include <vector>

#include "lanes.h"

// What the layers of a step have in common; the twin of `_Plan` in attention/compiled.py.
struct Plan {
  int64_t heads, kv_heads, dim, num_rows, num_writes, num_work;
  const int64_t* tile_pool;     // [tiles]
  const int64_t* tile_step;     // [tiles] tokens of a stretch
  const int64_t* tile_stretch;  // [tiles] its first stretch
  const int64_t* stretches;     // first slot of each stretch
  const int64_t* work;          // [work, 3] tile, its readers [first, last)
  const int64_t* reader_row;    // [readers] row of q
  const int64_t* reader_seen;   // [readers] tokens of the tile that it sees
  const int64_t* row_state;     // [rows + 1] into `states`
  const int64_t* states;        // readers, in the logical order of each row's tiles
  const int64_t* numbers;       // the logical number of each of these tiles
  const int64_t* write_row;     // [writes]
  const int64_t* write_pool;    // [writes]
  const int64_t* write_slot;    // [writes]
  const int64_t* pool_slots;    // [pools]
  float* out;                   // [readers, heads, dim] scratch
  float* lse;                   // [readers, heads] scratch
};

// One layer's tensors: k, v [rows, kv_heads, dim], q [rows', heads, dim] -> y [rows, heads, dim]; the
// strides (row, head) of q, k, v, y. `keys` and `values`: each pool's [kv_heads, slots, dim].
struct Layer {
  const float *q, *k, *v;
  float* y;
  int64_t at[8];
  float *const *keys, *const *values;
  float scale;
};

namespace {

constexpr int ROWS = 12;      // query rows whose scores are made together
constexpr int VALUES = 6;     // rows whose sums of values stay in registers, 64 numbers each
constexpr int AHEAD = 32;     // tokens by which keys are asked for before they are met
constexpr float LOWEST = -1e30f, TINY = 1e-38f;

struct Scratch {
  std::vector<float> keys, queries, scores;
  std::vector<const float*> key, value;  // of each token
};

// scores[m][16] of M queries with 16 keys: two chains over the dimensions, the even and the odd ones.
template <int M>
void scores_of(const float* q, const float* keys, int64_t dim, float* scores, int64_t stride) {
  Lanes even[M] = {}, odd[M] = {};
  for (int64_t d = 0; d < dim; d += 2) {
    const Lanes a = load(keys + d * WIDTH), b = load(keys + (d + 1) * WIDTH);
    for (int m = 0; m < M; m++) {
      even[m] += q[m * dim + d] * a;
      odd[m] += q[m * dim + d + 1] * b;
    }
  }
  for (int m = 0; m < M; m++) store(scores + m * stride, even[m] + odd[m]);
}

// out[m][from .. from + 16 H) = scale[m] * sum of p[m][t] * value[t], one chain over the tokens each.
template <int M, int H>
void values_of(const float* p, int64_t stride, const float* const* value, int64_t from, int64_t count,
               const float* scale, float* const* out) {
  Lanes sum[M][H] = {};
  for (int64_t t = 0; t < count; t++) {
    Lanes v[H];
    for (int h = 0; h < H; h++) v[h] = load(value[t] + from + h * WIDTH);
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

// Joins the states of `last - first` tiles of one row and head; gives the place of the result. A node
// of the tree over numbers [j 2^k, (j+1) 2^k) is made of its halves; an absent one changes nothing.
int64_t join(const int64_t* states, const int64_t* numbers, int64_t first, int64_t last, int64_t heads,
             int64_t dim, float* out, float* lse) {
  if (last - first == 1) return states[first];
  const int bit = 63 - __builtin_clzll(numbers[first] ^ numbers[last - 1]);
  int64_t half = first + 1;
  while (numbers[half] >> bit == numbers[first] >> bit) half++;
  const int64_t a = join(states, numbers, first, half, heads, dim, out, lse) * heads;
  const int64_t b = join(states, numbers, half, last, heads, dim, out, lse) * heads;
  const float top = std::max({lse[a], lse[b], LOWEST});
  const float left = std::exp(lse[a] - top), right = std::exp(lse[b] - top);
  const float total = std::max(left + right, TINY), u = left / total, v = right / total;
  for (int64_t d = 0; d < dim; d += WIDTH)
    store(out + a * dim + d, load(out + a * dim + d) * u + load(out + b * dim + d) * v);
  lse[a] = top + std::log(total);
  return a / heads;
}

void write(const Plan& p, const Layer& x, int64_t i) {
  const int64_t pool = p.write_pool[i], slots = p.pool_slots[pool], row = p.write_row[i];
  for (int64_t h = 0; h < p.kv_heads; h++) {
    const int64_t to = (h * slots + p.write_slot[i]) * p.dim;
    std::memcpy(x.keys[pool] + to, x.k + row * x.at[2] + h * x.at[3], sizeof(float) * p.dim);
    std::memcpy(x.values[pool] + to, x.v + row * x.at[4] + h * x.at[5], sizeof(float) * p.dim);
  }
}

// Where the first `count` tokens of a tile lie.
void find(const Plan& p, const Layer& x, int64_t tile, int64_t h, int64_t count, Scratch& s) {
  const int64_t pool = p.tile_pool[tile], step = p.tile_step[tile];
  const int64_t* slot = p.stretches + p.tile_stretch[tile];
  s.key.resize(count), s.value.resize(count);
  for (int64_t t = 0; t < count; slot++) {
    const int64_t from = (h * p.pool_slots[pool] + *slot) * p.dim;
    for (int64_t i = 0; i < step && t < count; i++, t++) {
      s.key[t] = x.keys[pool] + from + i * p.dim;
      s.value[t] = x.values[pool] + from + i * p.dim;
    }
  }
}

// Keys [count <= 16, dim] transposed: [dim, 16].
void turn(const float* const* key, int count, int64_t dim, float* keys) {
  for (int64_t d = 0; d < dim; d += WIDTH) {
    Lanes b[WIDTH];
    if (count == WIDTH)
      for (int i = 0; i < WIDTH; i++) b[i] = load(key[i] + d);
    else
      for (int i = 0; i < WIDTH; i++) b[i] = i < count ? load(key[i] + d) : Lanes{};
    transpose(b);
    for (int i = 0; i < WIDTH; i++) store(keys + (d + i) * WIDTH, b[i]);
  }
}

// A tile and one kv head: the states of all its readers' query heads.
void read(const Plan& p, const Layer& x, const int64_t* work, int64_t h, Scratch& s) {
  const int64_t first = work[1], last = work[2], dim = p.dim, groups = p.heads / p.kv_heads;
  int64_t count = 0;  // tokens of the tile that anybody sees
  for (int64_t e = first; e < last; e++) count = std::max(count, p.reader_seen[e]);
  find(p, x, work[0], h, count, s);
  const int64_t wide = (count + WIDTH - 1) / WIDTH * WIDTH, num = (last - first) * groups;
  s.keys.resize(WIDTH * dim), s.queries.resize(num * dim), s.scores.resize(num * wide);
  for (int64_t r = 0; r < num; r++) {
    const float* from = x.q + p.reader_row[first + r / groups] * x.at[0];
    from += (h * groups + r % groups) * x.at[1];
    for (int64_t d = 0; d < dim; d++) s.queries[r * dim + d] = from[d] * x.scale;
  }
  for (int64_t t = 0; t < wide; t += WIDTH) {  // each 16 keys meet all queries while they are near
    for (int64_t i = t + AHEAD; i < std::min(t + AHEAD + WIDTH, count); i++)
      for (int64_t d = 0; d < dim; d += WIDTH) __builtin_prefetch(s.key[i] + d, 0, 2);
    turn(&s.key[t], std::min<int64_t>(WIDTH, count - t), dim, s.keys.data());
    for (int64_t r = 0; r < num; r += ROWS) {
#define SCORES(M) scores_of<M>(&s.queries[r * dim], s.keys.data(), dim, &s.scores[r * wide + t], wide)
      BY_COUNT(std::min<int64_t>(ROWS, num - r), SCORES)
    }
  }
  for (int64_t r = 0; r < num; r += ROWS) {
    const int now = std::min<int64_t>(ROWS, num - r);
    float part[ROWS], *out[ROWS];
    for (int m = 0; m < now; m++) {
      const int64_t e = first + (r + m) / groups, head = h * groups + (r + m) % groups;
      out[m] = p.out + (e * p.heads + head) * dim;
      part[m] = softmax(&s.scores[(r + m) * wide], p.reader_seen[e], wide, p.lse + e * p.heads + head);
    }
    for (int m = 0; m < now; m += VALUES) {
      const int few = std::min(VALUES, now - m);
      int64_t d = 0;
#define VALUES_OF(M, H) \
  values_of<M, H>(&s.scores[(r + m) * wide], wide, s.value.data(), d, count, part + m, out + m)
#define FOUR(M) VALUES_OF(M, 4)
#define ONE(M) VALUES_OF(M, 1)
      for (; d + 4 * WIDTH <= dim; d += 4 * WIDTH) BY_COUNT(few, FOUR)
      for (; d < dim; d += WIDTH) BY_COUNT(few, ONE)
    }
  }
}

void join_row(const Plan& p, const Layer& x, int64_t row) {
  const int64_t first = p.row_state[row], last = p.row_state[row + 1], dim = p.dim;
  for (int64_t head = 0; head < p.heads; head++) {
    float* to = x.y + row * x.at[6] + head * x.at[7];
    float *out = p.out + head * dim, *lse = p.lse + head;
    if (first == last) {
      std::memset(to, 0, sizeof(float) * dim);
    } else {
      const int64_t e = join(p.states, p.numbers, first, last, p.heads, dim, out, lse);
      std::memcpy(to, out + e * p.heads * dim, sizeof(float) * dim);
    }
  }
}

}  // namespace

// Writes a layer's keys and values, then reads. `dim` is a multiple of 16.
extern "C" void inms_attend(const Plan* plan, const Layer* layer, int threads) {
  const Plan& p = *plan;
  const Layer& x = *layer;
#pragma omp parallel num_threads(threads)
  {
    static thread_local Scratch s;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p.num_writes; i++) write(p, x, i);
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < p.num_work * p.kv_heads; unit++)
      read(p, x, p.work + unit / p.kv_heads * 3, unit % p.kv_heads, s);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < p.num_rows; row++) join_row(p, x, row);
  }
}
