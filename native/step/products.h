// Deals out matrix products over the workers: cuts them into blocks of outputs and tiles of rows.
#pragma once
#include <initializer_list>

#include "native/isa/isa.h"
#include "native/threads/team.h"

namespace sojourn {

struct Product {
    const Matrix& w;
    float* out;
    ptrdiff_t stride;
    Epilogue epilogue = Epilogue::Store;
};

// Inside a team's job: out = W x or out += W x for every product, all reading the same rows of x.
void multiply(Team& team, const Kernels& kernels, std::initializer_list<Product> products, const Activations& x,
              int rows);

// Inside a team's job: out = activation(gate x) * (up x).
void multiply_gated(Team& team, const Kernels& kernels, const Matrix& gate, const Matrix& up, const Activations& x,
                    int rows, float* out, ptrdiff_t stride, Activation activation);

}  // namespace sojourn
