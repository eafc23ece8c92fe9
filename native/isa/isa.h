// The instruction sets the core can use, and the kernels compiled for each.
//
// Kernels are templates over lanes (native/simd); isa/{portable,avx2,avx512}.cpp instantiate them, each with its own
// compiler flags. Everything else calls them through this table and is compiled for the plain machine.
#pragma once
#include <cstddef>

#include "native/attention/unit.h"
#include "native/linear/linear.h"

namespace sojourn {

enum class Isa : uint8_t { Portable, Avx2, Avx512 };

// All kernels are pure functions of their arguments and run on the calling thread. Row m of an output starts at
// out + m * stride, m counted like the rows of the input; only the rows and blocks asked for are read and written.
struct Kernels {
    const char* name;

    // linear/quantise.h: fills quants, scales, isums and sums of `rows` from x.values.
    void (*quantise)(const Activations& x, Range rows);
    // linear/multiply.h: out = W x, or out += W x. The bits of a result do not depend on the two ranges.
    void (*linear)(const Matrix& w, const Activations& x, Range rows, Range blocks, float* out, ptrdiff_t stride,
                   Epilogue epilogue);
    // linear/multiply.h: out = act(gate x) * (up x), for gate and up of one shape.
    void (*gated)(const Matrix& gate, const Matrix& up, const Activations& x, Range rows, Range blocks, float* out,
                  ptrdiff_t stride, Activation activation);
    // linear/embed.h: out[cols] = scale * row `row` of w.
    void (*embed_row)(const Matrix& w, int row, float* out, float scale);

    // attention/attend.h: one unit, K and V as stored; and the output of one row and head from its spans' partials.
    void (*attend_f16)(const AttentionUnit& unit, const AttentionScratch& scratch);
    void (*attend_f32)(const AttentionUnit& unit, const AttentionScratch& scratch);
    void (*merge_partials)(const float* partials, int count, int head_dim, float* running, float* output);

    // elementwise/rows.h: single rows.
    void (*rms_norm)(const float* x, const float* weight, float epsilon, int n, float* output);
    void (*add)(float* x, const float* y, int n);
    void (*rotate)(float* head, const float* cosines, const float* sines, int half);
    void (*softcap)(float* x, float cap, int n);
    bool (*store_kv_f16)(const float* k, const float* v, int head_dim, void* keys, int key_stride, void* values);
    bool (*store_kv_f32)(const float* k, const float* v, int head_dim, void* keys, int key_stride, void* values);

    // sampler/vocabulary.h: passes over one row of logits.
    float (*maximum)(const float* x, int n);
    int (*first_at_least)(const float* x, int n, float bound);
    int (*collect_at_least)(const float* x, int n, float bound, int* indices);
    void (*exponentials)(const float* x, int n, float maximum, float factor, float* weights, double* sums);
};

// The best set this processor and operating system can run.
Isa best_isa();

// Whether this build has the set and this processor can run it. Portable always.
bool is_supported(Isa isa);

// Throws std::invalid_argument when the set is not supported.
const Kernels& kernels_for(Isa isa);

}  // namespace sojourn
