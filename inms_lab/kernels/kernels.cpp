// The kernels as functions of C: what inms_lab/kernels/native.py calls. They check nothing.
#include "product.h"
#include "tiles.h"

// A decoder layer that adds attention(norm x) and then gated(norm x) to x; the twin of `_Block` in
// model/layers.py.
struct Block {
  const float* x;         // [rows, columns]
  float* y;               // [rows, columns]
  float* room;            // [rows, 2 columns + (2 heads + 2 kv_heads) dim + 2 inner]
  const float *cos, *sin;  // [rows, turned]
  const float* norm[2];   // weights, before attention and before the gated MLP
  const float* w[7];      // queries, keys, values, attention's output; gate, up, down
  const float* bias[7];   // or null
  float eps[2];
  int64_t rows, columns, inner, turned;
};

namespace {

void compute(const Member& m, const Plan& p, const Layer& layer, const Block& b) {
  const int64_t n = b.rows, kv = p.kv_heads * p.dim, wide = p.heads * p.dim;
  float *normed = b.room, *middle = normed + n * b.columns, *q = middle + n * b.columns;
  float *k = q + n * wide, *v = k + n * kv, *out = v + n * kv, *inner = out + n * wide;
  const Layer own = {q, k, v, out, {wide, p.dim, kv, p.dim, kv, p.dim, wide, p.dim},
                     layer.keys, layer.values, layer.scale};
  const Heads sizes = {n, b.columns, p.heads, p.kv_heads, p.dim, b.turned};
  if (m.me == 0) m.team.next = 0;
  norm(m, b.x, b.norm[0], b.eps[0], normed, n, b.columns);
  m.wait();
  heads(m, sizes, normed, b.w, b.bias, b.cos, b.sin, q);
  attend(m, p, own);
  product(m, out, b.w[3], b.bias[3], middle, n, b.columns, wide, b.x);
  m.wait();
  norm(m, middle, b.norm[1], b.eps[1], normed, n, b.columns);
  m.wait();
  gated(m, normed, b.w + 4, b.bias + 4, b.y, inner, n, b.inner, b.columns, middle);
  m.wait();
}

}  // namespace

extern "C" {

// x [rows, columns], w [outputs, columns], bias [outputs] or null, y [rows, outputs]; contiguous.
void inms_linear(const float* x, const float* w, const float* bias, float* y, int64_t rows,
                 int64_t outputs, int64_t columns, int threads) {
  together(threads, [&](const Member& m) { product(m, x, w, bias, y, rows, outputs, columns); });
}

// See `norm`.
void inms_norm(const float* x, const float* w, float eps, float* y, int64_t rows, int64_t columns,
               int threads) {
  together(rows > 64 ? threads : 1, [&](const Member& m) { norm(m, x, w, eps, y, rows, columns); });
}

// See `gated`.
void inms_gated(const float* x, const float* gate, const float* up, const float* down, float* y,
                float* room, int64_t rows, int64_t inner, int64_t columns, int threads) {
  const float *w[3] = {gate, up, down}, *none[3] = {};
  together(threads, [&](const Member& m) { gated(m, x, w, none, y, room, rows, inner, columns); });
}

// See `heads`.
void inms_heads(const float* x, const float* const* w, const float* const* bias, const float* cos,
                const float* sin, float* y, const Heads* sizes, int threads) {
  together(threads, [&](const Member& m) { heads(m, *sizes, x, w, bias, cos, sin, y); });
}

// See `attend`.
void inms_attend(const Plan* plan, const Layer* layer, int threads) {
  together(threads, [&](const Member& m) { attend(m, *plan, *layer); });
}

// Decoder layers, each behind the one before. Of `layers` only `keys`, `values` and `scale` are read; a
// block's `x` may be its `y`.
void inms_blocks(const Plan* plan, const Layer* layers, const Block* blocks, int64_t count,
                 int threads) {
  together(threads, [&](const Member& m) {
    for (int64_t i = 0; i < count; i++) compute(m, *plan, layers[i], blocks[i]);
  });
}
}
