// Products of large links that are left to BLAS.
//
// To BLAS, which works in Fortran's order, the rows of a block are the columns of a matrix (cases, units).
#ifndef RAYFBNN_PACKED_BLAS_HPP
#define RAYFBNN_PACKED_BLAS_HPP

#include "packed_layout.hpp"

namespace RAYFBNN_NAMESPACE {

// c = a b, or c += a b if is_added. The forms are "N", or "T" for a transposed matrix.
template <class S>
inline void gemm(
    const PackedNetwork<S>& network, const char* a_form, const char* b_form, int m, int n, int k, const void* a,
    int a_step, const void* b, int b_step, bool is_added, void* c, int c_step) {
    const S one = 1, beta = S(is_added);
    network.job.gemm(a_form, b_form, &m, &n, &k, &one, a, &a_step, b, &b_step, &beta, c, &c_step);
}

// Puts the summed inputs of a layer through links first_link .. end_link - 1 into its values.
template <class S>
inline void begin_forward_by_blas(const PackedNetwork<S>& network, int layer, int first_link, int end_link) {
    const int n_cases = int(network.stride * network.W);
    bool is_begun = false;
    for (int k = first_link; k < end_link; ++k) {
        const PackedLink<S>& link = network.links[k];
        const int n = link.n_destinations;
        if (!link.uses_blas) continue;
        gemm(network, "N", "T", n_cases, n, link.n_units, link.from->sources, n_cases, network.q + link.start, n,
             is_begun, network.layers[layer].values, n_cases);
        is_begun = true;
    }
}

// Adds the derivatives by a layer's values through its links out to those of the regression, if there are any.
template <class S>
inline void begin_backward_by_blas(const PackedNetwork<S>& network, int layer) {
    const int n_cases = int(network.stride * network.W);
    const rayfbnn::Regression& regression = network.job.regression;
    bool is_begun = false;
    for (int k = 0; k < regression.n_features; ++k)
        is_begun |= regression.features[k].layer == layer && regression.features[k].row >= 0;
    for (int k = 0; k < network.net.n_links; ++k) {
        const PackedLink<S>& link = network.links[k];
        const int n = link.n_destinations;
        if (link.source != layer || !link.uses_blas) continue;
        gemm(network, "N", "N", n_cases, link.n_units, n, link.to->slopes, n_cases, network.q + link.start, n,
             is_begun, network.layers[layer].by_value, n_cases);
        is_begun = true;
    }
}

// Adds the block's share of the gradient of a link's weights.
template <class S>
inline void add_products_by_blas(const PackedNetwork<S>& network, const PackedLink<S>& link) {
    const int n_cases = int(network.stride * network.W), n = link.n_destinations;
    gemm(network, "T", "N", n, link.n_units, n_cases, link.to->slopes, n_cases, link.from->sources, n_cases,
         true, network.data_gradient + link.start, n);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
