// Rows of activations between two products: floats, and their int8 form where a quantised matrix will read them.
#pragma once
#include "native/isa/isa.h"
#include "native/step/buffer.h"

namespace sojourn {

class ActivationRows {
public:
    // `is_quantised`: whether any matrix that reads these rows is.
    ActivationRows(int cols, bool is_quantised) : cols_(cols), is_quantised_(is_quantised) {}

    void ensure(int rows) {
        const size_t elements = static_cast<size_t>(rows) * static_cast<size_t>(cols_);
        values_.ensure(elements);
        if (!is_quantised_) return;
        const size_t groups = elements / kGroup;
        quants_.ensure(elements);
        scales_.ensure(groups);
        isums_.ensure(groups);
        sums_.ensure(groups);
    }

    int cols() const { return cols_; }
    float* row(int index) const { return values_.data() + static_cast<size_t>(index) * static_cast<size_t>(cols_); }

    // To be called when the floats of a row are final.
    void seal(const Kernels& kernels, int row) const {
        if (is_quantised_) kernels.quantise(view(), {row, row + 1});
    }

    Activations view() const {
        return {.cols = cols_,
                .values = values_.data(),
                .quants = quants_.data(),
                .scales = scales_.data(),
                .isums = isums_.data(),
                .sums = sums_.data()};
    }

private:
    int cols_;
    bool is_quantised_;
    Buffer<float> values_;
    Buffer<int8_t> quants_;
    Buffer<float> scales_;
    Buffer<int32_t> isums_;
    Buffer<float> sums_;
};

}  // namespace sojourn
