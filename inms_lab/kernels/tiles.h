// Attention over tiles that lie anywhere: every tile is read once for all rows that hold it.
//
// A tile's keys are transposed once and meet the query rows of all its readers; the result of each
// (row, tile) is the softmax over that tile alone with its log-sum-exp. Then the tiles of each row
// are joined by a binary tree over their logical numbers. Every (row, tile) is computed by itself
// and in one order, so a row's bits do not depend on who else is served, nor on where blocks lie.
// Source: online softmax (Milakov and Gimelshein 2018), joined as in FlashAttention's split form.
#pragma once
#include <vector>

#include "rows.h"
#include "team.h"

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

constexpr int BEYOND = 64;   // tokens behind a tile's last that are asked for: what is met next
constexpr float LOWEST = -1e30f, TINY = 1e-38f;

struct Scratch {
  std::vector<float> keys, queries, scores;
  std::vector<const float*> key, value;  // of each token, and what to ask for beyond the last
};

template <class T>
void grow(std::vector<T>& room, size_t size) {
  if (room.size() < size) room.resize(size);
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

// Where the first `count` tokens of a tile lie. Behind the last key the values are asked for, and
// behind the last value what is met `next`.
void find(const Plan& p, const Layer& x, int64_t tile, int64_t h, int64_t count, const float* next,
          Scratch& s) {
  const int64_t pool = p.tile_pool[tile], step = p.tile_step[tile];
  const int64_t* slot = p.stretches + p.tile_stretch[tile];
  grow(s.key, count + BEYOND), grow(s.value, count + BEYOND);
  for (int64_t t = 0; t < count; slot++) {
    const int64_t from = (h * p.pool_slots[pool] + *slot) * p.dim;
    for (int64_t i = 0; i < step && t < count; i++, t++) {
      s.key[t] = x.keys[pool] + from + i * p.dim;
      s.value[t] = x.values[pool] + from + i * p.dim;
    }
  }
  for (int64_t i = 0; i < BEYOND; i++) {
    s.key[count + i] = s.value[std::min(i, count - 1)];
    s.value[count + i] = next + i * p.dim;
  }
}

// The states of readers that see nothing of a tile: neutral ones.
void nothing(const Plan& p, int64_t first, int64_t last, int64_t h) {
  const int64_t groups = p.heads / p.kv_heads;
  for (int64_t e = first; e < last; e++)
    for (int64_t head = e * p.heads + h * groups, i = 0; i < groups; i++) {
      std::memset(p.out + (head + i) * p.dim, 0, sizeof(float) * p.dim);
      p.lse[head + i] = -INFINITY;
    }
}

// A tile and one kv head: the states of all its readers' query heads. `next`: keys that are met then.
void read(const Plan& p, const Layer& x, const int64_t* work, int64_t h, const float* next, Scratch& s) {
  const int64_t first = work[1], last = work[2], dim = p.dim, groups = p.heads / p.kv_heads;
  int64_t count = 0;  // tokens of the tile that anybody sees
  for (int64_t e = first; e < last; e++) count = std::max(count, p.reader_seen[e]);
  if (!count) return nothing(p, first, last, h);
  find(p, x, work[0], h, count, next, s);
  const int64_t wide = (count + WIDTH - 1) / WIDTH * WIDTH, num = (last - first) * groups;
  const int64_t stride = wide + WIDTH;  // not a power of two: rows would push each other out of the cache
  grow(s.keys, GROUPS * WIDTH * dim), grow(s.queries, num * dim), grow(s.scores, num * stride);
  for (int64_t r = 0; r < num; r++) {
    const float* from = x.q + p.reader_row[first + r / groups] * x.at[0];
    from += (h * groups + r % groups) * x.at[1];
    for (int64_t d = 0; d < dim; d++) s.queries[r * dim + d] = from[d] * x.scale;
  }
  for (int64_t t = 0; num <= ROWS && t < wide; t += WIDTH) {
    const int many = std::min<int64_t>(WIDTH, count - t);
#define FEW(M) few_scores_of<M>(s.queries.data(), &s.key[t], many, dim, &s.scores[t], stride)
    BY_ROWS(num, FEW)
  }
  for (int64_t t = 0; num > ROWS && t < wide; t += GROUPS * WIDTH) {  // these keys meet all queries
    const int now = std::min<int64_t>(GROUPS, (wide - t) / WIDTH);
    for (int g = 0; g < now; g++) {
      const int64_t at = t + g * WIDTH;
      turn(&s.key[at], std::min<int64_t>(WIDTH, count - at), dim, &s.keys[g * WIDTH * dim]);
    }
    for (int64_t r = 0; r < num; r += ROWS) {
      const int few = std::min<int64_t>(ROWS, num - r);
      const int64_t from = GROUPS * WIDTH * r / num, to = GROUPS * WIDTH * (r + few) / num;
      const float *q = &s.queries[r * dim], *const *ask = &s.key[t + GROUPS * WIDTH + from];
      float* scores = &s.scores[r * stride + t];
#define ONE(M) scores_of<M, 1>(q, s.keys.data(), dim, scores, stride, ask, to - from)
#define ALL(M) scores_of<M, GROUPS>(q, s.keys.data(), dim, scores, stride, ask, to - from)
      if (now == 1)
        BY_ROWS(few, ONE)
      else
        BY_ROWS(few, ALL)
    }
  }
  for (int64_t r = 0; r < num; r += ROWS) {
    const int few = std::min<int64_t>(ROWS, num - r);
    float part[ROWS], *out[ROWS];
    for (int m = 0; m < few; m++) {
      const int64_t e = first + (r + m) / groups, head = h * groups + (r + m) % groups;
      out[m] = p.out + (e * p.heads + head) * dim;
      part[m] = softmax(&s.scores[(r + m) * stride], p.reader_seen[e], wide, p.lse + e * p.heads + head);
    }
    int64_t d = 0;
#define VALUES(M, H, A) \
  values_of<M, H, A>(&s.scores[r * stride], stride, s.value.data(), d, count, part, out)
#define FIRST(M) VALUES(M, 4, true)
#define FOUR(M) VALUES(M, 4, false)
#define LEFT(M) VALUES(M, 1, false)
    for (; d + 4 * WIDTH <= dim; d += 4 * WIDTH) {
      if (r == 0)
        BY_ROWS(few, FIRST)
      else
        BY_ROWS(few, FOUR)
    }
    for (; d < dim; d += WIDTH) BY_ROWS(few, LEFT)
  }
}

// The tiles of one row and query head, joined.
void join_head(const Plan& p, const Layer& x, int64_t row, int64_t head) {
  const int64_t first = p.row_state[row], last = p.row_state[row + 1], dim = p.dim;
  float* to = x.y + row * x.at[6] + head * x.at[7];
  float *out = p.out + head * dim, *lse = p.lse + head;
  if (first == last) {
    std::memset(to, 0, sizeof(float) * dim);
  } else {
    const int64_t e = join(p.states, p.numbers, first, last, p.heads, dim, out, lse);
    std::memcpy(to, out + e * p.heads * dim, sizeof(float) * dim);
  }
}

// A member's share of a layer's attention: writes its keys and values, then reads. `dim` is a multiple
// of 16. The team has not taken work before.
void attend(const Member& m, const Plan& p, const Layer& x) {
  static thread_local Scratch s;
  for (int64_t i = m.begin(p.num_writes); i < m.end(p.num_writes); i++) write(p, x, i);
  m.wait();
  const int64_t units = p.num_work * p.kv_heads;
  for (int64_t unit = m.team.next++; unit < units; unit = m.team.next++) {
    const int64_t then = std::min(m.team.next.load(), units - 1), tile = p.work[then / p.kv_heads * 3];
    const int64_t pool = p.tile_pool[tile], slot = p.stretches[p.tile_stretch[tile]];
    const float* next = x.keys[pool] + (then % p.kv_heads * p.pool_slots[pool] + slot) * p.dim;
    read(p, x, p.work + unit / p.kv_heads * 3, unit % p.kv_heads, next, s);
  }
  m.wait();
  const int64_t all = p.num_rows * p.heads;
  for (int64_t i = m.begin(all); i < m.end(all); i++) join_head(p, x, i / p.heads, i % p.heads);
  m.wait();
}

}  // namespace
