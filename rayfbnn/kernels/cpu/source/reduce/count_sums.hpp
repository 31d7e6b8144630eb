// The distribution function of counts and their probabilities, at whole numbers.
#ifndef RAYFBNN_REDUCE_COUNT_SUMS_HPP
#define RAYFBNN_REDUCE_COUNT_SUMS_HPP

#include "block.hpp"

namespace RAYFBNN_NAMESPACE {

template <class S, bool WITH_CDF>
class CountSums : public Sums<S> {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    typedef Predictive<D> P;
    static constexpr int W = Lane<L>::width, N = Doubles<S>::N;

    explicit CountSums(const Job& job) : Sums<S>(job) {
        const long size = here.n_guesses() * here.most_places();
        counts = Buffer<double>(size), log_counts = Buffer<double>(size), peaks = Buffer<double>(size);
        small_counts = Buffer<int>(size / D::width), totals = Buffer<double>(N_SUMS * size);
    }

   private:
    using Sums<S>::here;
    static constexpr int N_SUMS = WITH_CDF ? 3 : 1;
    Buffer<double> counts, log_counts, peaks, totals;
    Buffer<int> small_counts;

    void end() override { here.add_to(here.wanted.sums, totals, N_SUMS * here.n_guesses()); }

    void begin() override {
        const long n_rows = here.n_guesses();
        clear(totals, N_SUMS * n_rows * here.places());
        here.take(counts.data(), static_cast<const double*>(here.wanted.guesses), n_rows);
        here.take(log_counts.data(), here.wanted.log_counts, n_rows);
        here.take(peaks.data(), here.wanted.peaks, n_rows);
        // The largest count below 16 in each pack, -1 if there is none; 32 is added if there are larger ones too.
        for (long k = 0; k < n_rows * here.places() / D::width; ++k) {
            int largest = NO_COUNT, with_larger = 0;
            for (int c = 0; c < D::width; ++c) {
                const double count = counts[k * D::width + c];
                if (count >= FROM_EXPANSION)
                    with_larger = WITH_LARGER;
                else if (count > largest)
                    largest = int(count);
            }
            small_counts[k] = largest + with_larger;
        }
    }
    static constexpr int NO_COUNT = -1, WITH_LARGER = 32;

    void add() override {
        const long step = here.net.n_targets * here.places(), part = here.wanted.n_guesses * step;
        for (int o = 0; o < here.net.n_targets; ++o)
            for (long c = 0; c < here.places(); c += D::width) {
                const S* output = reinterpret_cast<const S*>(here.outputs()) + o * here.places() + c;
                const PackDouble v = D::at_most(doubles_of(output), MOST_LOG_RATE);
                for (long q = 0; q < here.wanted.n_guesses; ++q) {
                    const long at = q * step + o * here.places() + c;
                    if constexpr (WITH_CDF) {
                        PackDouble cdf = {}, mass = {};
                        count_probabilities(v, at, cdf, mass);
                        *pack_at(totals, at) += cdf;
                        *pack_at(totals, part + at) += mass;
                    } else {
                        *pack_at(totals, at) += P::count_mass(v, count_at(at));
                    }
                }
            }
    }

    RAYFBNN_METHOD typename P::Count count_at(long at) const {
        return {*pack_at(counts, at), *pack_at(log_counts, at), *pack_at(peaks, at)};
    }

    RAYFBNN_METHOD void count_probabilities(PackDouble v, long at, PackDouble& cdf, PackDouble& mass) const {
        const int code = small_counts[at / D::width];
        const int last = code >= WITH_LARGER + NO_COUNT ? code - WITH_LARGER : code;
        const PackDouble k = *pack_at(counts, at);
        if (last >= 0) P::small_count(v, k, last, cdf, mass);
        if (last == code) return;
        typename P::Count count = count_at(at);
        count.k = D::at_least(k, FROM_EXPANSION);
        PackDouble large_cdf, large_mass;
        P::large_count(v, count, large_cdf, large_mass);
        cdf = last < 0 ? large_cdf : D::select(k < FROM_EXPANSION, cdf, large_cdf);
        mass = last < 0 ? large_mass : D::select(k < FROM_EXPANSION, mass, large_mass);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
