// The distribution function of counts and their probabilities, at whole numbers.
#ifndef RAYFBNN_REDUCE_COUNT_SUMS_HPP
#define RAYFBNN_REDUCE_COUNT_SUMS_HPP

#include "block.hpp"
#include "shared/dispersed.hpp"

namespace RAYFBNN_NAMESPACE {

// The probabilities at the counts of a pack: at small ones up to `last`, and at large ones of the kinds `has_few` and
// `has_many` of dispersed.hpp. The two classes have the same members. `large_mass` is right at small counts too if
// IS_ONE_MASS.
template <class D>
struct PoissonLaw {
    typedef Predictive<D> P;
    typedef PackDouble Place;
    static constexpr double FROM = FROM_EXPANSION, FROM_MANY = FROM_EXPANSION;
    static constexpr bool IS_ONE_MASS = true;

    explicit PoissonLaw(const double*) {}
    RAYFBNN_METHOD Place place(PackDouble v) const { return v; }
    RAYFBNN_METHOD void small(PackDouble v, PackDouble k, int last, PackDouble& cdf, PackDouble& mass) const {
        P::small_count(v, k, last, cdf, mass);
    }
    RAYFBNN_METHOD void large(
        PackDouble v, const typename P::Count& count, bool, bool, PackDouble& cdf, PackDouble& mass) const {
        P::large_count(v, count, cdf, mass);
    }
    RAYFBNN_METHOD PackDouble large_mass(PackDouble v, const typename P::Count& count) const {
        return P::count_mass(v, count);
    }
};

template <class D>
struct DispersedLaw {
    typedef Dispersed<D> P;
    typedef typename P::Odds Place;
    static constexpr double FROM = FROM_FRACTION, FROM_MANY = FROM_NORMAL;
    static constexpr bool IS_ONE_MASS = false;
    const typename P::Shape shape;

    explicit DispersedLaw(const double* numbers) : shape(P::shape_at(numbers)) {}
    RAYFBNN_METHOD Place place(PackDouble v) const { return P::odds(v, shape); }
    RAYFBNN_METHOD void small(const Place& odds, PackDouble k, int last, PackDouble& cdf, PackDouble& mass) const {
        P::small_count(odds, k, shape, last, cdf, mass);
    }
    RAYFBNN_METHOD void large(
        const Place& odds, const typename P::Count& count, bool has_few, bool has_many, PackDouble& cdf,
        PackDouble& mass) const {
        P::large_count(odds, count, shape, has_few, has_many, cdf, mass);
    }
    RAYFBNN_METHOD PackDouble large_mass(const Place& odds, const typename P::Count& count) const {
        return P::at_large(odds, count, shape).mass;
    }
};

template <class S, class Law, bool WITH_CDF>
class CountSums : public Sums<S> {
   public:
    typedef typename Pack<S>::Type L;
    typedef Lane<PackDouble> D;
    typedef typename Predictive<D>::Count Count;

    explicit CountSums(const Job& job) : Sums<S>(job) {
        const long size = here.n_guesses() * here.most_places();
        counts = Buffer<double>(size), log_counts = Buffer<double>(size), peaks = Buffer<double>(size);
        kinds = Buffer<Kinds>(size / D::width), totals = Buffer<double>(N_SUMS * size);
    }

   private:
    using Sums<S>::here;
    static constexpr int N_SUMS = WITH_CDF ? 3 : 1;
    // Which counts a pack has: the largest small one, or -1 if there is none, and whether it has large ones.
    struct Kinds {
        int last;
        bool has_few, has_many;
        bool has_large() const { return has_few || has_many; }
    };
    Buffer<double> counts, log_counts, peaks, totals;
    Buffer<Kinds> kinds;

    void end() override { here.add_to(here.wanted.sums, totals, N_SUMS * here.n_guesses()); }

    void begin() override {
        const long n_rows = here.n_guesses();
        clear(totals, N_SUMS * n_rows * here.places());
        here.take(counts.data(), static_cast<const double*>(here.wanted.guesses), n_rows);
        here.take(log_counts.data(), here.wanted.log_counts, n_rows);
        here.take(peaks.data(), here.wanted.peaks, n_rows);
        for (long k = 0; k < n_rows * here.places() / D::width; ++k) kinds[k] = kinds_of(counts + k * D::width);
    }

    static Kinds kinds_of(const double* pack) {
        Kinds found = {-1, false, false};
        for (int c = 0; c < D::width; ++c) {
            const double count = pack[c];
            if (count >= Law::FROM)
                (count >= Law::FROM_MANY ? found.has_many : found.has_few) = true;
            else if (count > found.last)
                found.last = int(count);
        }
        return found;
    }

    void add() override {
        const long step = here.net.n_targets * here.places(), part = here.wanted.n_guesses * step;
        for (int o = 0; o < here.net.n_targets; ++o) {
            const double* shapes = here.wanted.shapes;
            if (shapes) shapes += (long(here.draw) * here.net.n_targets + o) * N_OF_SHAPE;
            const Law law(shapes);
            for (long c = 0; c < here.places(); c += D::width) {
                const S* output = reinterpret_cast<const S*>(here.outputs()) + o * here.places() + c;
                const typename Law::Place place = law.place(D::at_most(doubles_of(output), MOST_LOG_RATE));
                for (long q = 0; q < here.wanted.n_guesses; ++q) {
                    const long at = q * step + o * here.places() + c;
                    PackDouble cdf = {}, mass = {};
                    probabilities(law, place, at, cdf, mass);
                    if constexpr (WITH_CDF) *pack_at(totals, at) += cdf;
                    *pack_at(totals, WITH_CDF ? part + at : at) += mass;
                }
            }
        }
    }

    RAYFBNN_METHOD void probabilities(
        const Law& law, const typename Law::Place& place, long at, PackDouble& cdf, PackDouble& mass) const {
        const PackDouble k = *pack_at(counts, at);
        Count count = {k, *pack_at(log_counts, at), *pack_at(peaks, at)};
        if constexpr (!WITH_CDF && Law::IS_ONE_MASS) {
            mass = law.large_mass(place, count);
            return;
        }
        const Kinds kind = kinds[at / D::width];
        if (kind.last >= 0) law.small(place, k, kind.last, cdf, mass);
        if (!kind.has_large()) return;
        count.k = D::at_least(k, Law::FROM);
        PackDouble large_cdf = {}, large_mass;
        if constexpr (WITH_CDF)
            law.large(place, count, kind.has_few, kind.has_many, large_cdf, large_mass);
        else
            large_mass = law.large_mass(place, count);
        cdf = kind.last < 0 ? large_cdf : D::select(k < Law::FROM, cdf, large_cdf);
        mass = kind.last < 0 ? large_mass : D::select(k < Law::FROM, mass, large_mass);
    }
};

}  // namespace RAYFBNN_NAMESPACE
#endif
