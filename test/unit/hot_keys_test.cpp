// The sketch of the keys that are replayed most often: its places, its error, and its sample.
#include "core/hot_keys.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "support.hpp"

using namespace idem::core;

namespace {

using Sketch = HotKeys<replay_places>;

constexpr std::int64_t noon = 800'000'000'000'000;

Digest digest(std::uint64_t n) {
    Digest out{};
    const auto bytes = big_endian<8>(n);
    std::copy(bytes.begin(), bytes.end(), out.begin() + 8);
    return out;
}

const HotKey* find(const Sketch& sketch, std::uint64_t n) {
    const auto end = sketch.keys.begin() + sketch.used;
    const auto found = std::find_if(sketch.keys.begin(), end,
                                    [&](const HotKey& key) { return key.digest == digest(n); });
    return found == end ? nullptr : &*found;
}

// How often each key occurs in a stream.
using Counts = std::map<std::uint64_t, std::int64_t>;

// What is wrong with the sketch of a whole stream, as parts of all events.
struct Error {
    double most_missed = 0;      // of a key with a place: true number less counted()
    double largest_without = 0;  // the most frequent key without a place
};

// Draws keys, counts them in the sketch and exactly, and checks the bounds of every key.
template <class Draw>
Error measure(std::int64_t events, Draw draw) {
    Sketch sketch{};
    Counts exact;
    for (std::int64_t i = 0; i < events; ++i) {
        const std::uint64_t key = draw();
        ++exact[key];
        count_hot_key(sketch, digest(key), 1, noon + i);
    }
    Error error;
    for (const auto& [key, number] : exact) {
        const HotKey* place = find(sketch, key);
        const auto part = [&](std::int64_t n) {
            return static_cast<double>(n) / static_cast<double>(events);
        };
        if (place == nullptr) {
            error.largest_without = std::max(error.largest_without, part(number));
            continue;
        }
        EXPECT_GE(place->count, number);
        EXPECT_LE(counted(*place), number);
        error.most_missed = std::max(error.most_missed, part(number - counted(*place)));
    }
    return error;
}

void print(const char* stream, const Error& error) {
    std::printf("%s: misses at most %.2f %% of all events, of a key without a place %.2f %%\n",
                stream, 100 * error.most_missed, 100 * error.largest_without);
}

constexpr double bound = 1.0 / replay_places;

}  // namespace

TEST(HotKeys, AreExactWhileThereArePlaces) {
    Sketch sketch{};
    for (std::uint64_t key = 0; key < replay_places; ++key)
        for (std::uint64_t n = 0; n <= key; ++n)
            count_hot_key(sketch, digest(key), 1, noon + static_cast<std::int64_t>(100 * key + n));
    for (std::uint64_t key = 0; key < replay_places; ++key) {
        const HotKey* place = find(sketch, key);
        ASSERT_NE(place, nullptr);
        EXPECT_EQ(counted(*place), static_cast<std::int64_t>(key + 1));
        EXPECT_EQ(place->first_seen, noon + static_cast<std::int64_t>(100 * key));
        EXPECT_EQ(place->last_seen, noon + static_cast<std::int64_t>(101 * key));
    }
}

TEST(HotKeys, ANewKeyTakesTheLowestPlaceAndEarnsNothingByIt) {
    Sketch sketch{};
    for (std::uint64_t key = 0; key < replay_places; ++key)
        count_hot_key(sketch, digest(key), key == 7 ? 5 : 9, noon);
    count_hot_key(sketch, digest(100), 2, noon + 1);
    EXPECT_EQ(find(sketch, 7), nullptr);
    const HotKey* place = find(sketch, 100);
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(place->count, 7);
    EXPECT_EQ(counted(*place), 2);
    EXPECT_EQ(place->first_seen, noon + 1);
}

TEST(HotKeys, AKeyThatIsNoLongerSeenGivesItsPlaceUpFirst) {
    Sketch sketch{};
    for (std::uint64_t key = 0; key < replay_places; ++key)
        count_hot_key(sketch, digest(key), key == 7 ? 1'000'000 : 9,
                      key == 7 ? noon : noon + forgotten_after);
    count_hot_key(sketch, digest(100), 1, noon + forgotten_after);
    EXPECT_NE(find(sketch, 7), nullptr) << "a day is not over";
    count_hot_key(sketch, digest(101), 1, noon + forgotten_after + 1);
    EXPECT_EQ(find(sketch, 7), nullptr);
    const HotKey* place = find(sketch, 101);
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(counted(*place), 1);
}

TEST(HotKeys, AClockThatIsSetBackLosesNothing) {
    Sketch sketch{};
    count_hot_key(sketch, digest(1), 1, noon);
    count_hot_key(sketch, digest(1), 1, noon - 5);
    const HotKey* place = find(sketch, 1);
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(counted(*place), 2);
    EXPECT_EQ(place->first_seen, noon - 5);
    EXPECT_EQ(place->last_seen, noon);
}

// The stream of real clients: a few keys are frequent.
TEST(HotKeys, MissLittleOfAZipfStream) {
    std::mt19937_64 random(1);
    std::vector<double> weights;
    for (int rank = 1; rank <= 100'000; ++rank) weights.push_back(1.0 / rank);
    std::discrete_distribution<std::uint64_t> zipf(weights.begin(), weights.end());
    const Error error = measure(300'000, [&] { return zipf(random); });
    print("Zipf stream", error);
    EXPECT_LE(error.most_missed, bound);
    EXPECT_LE(error.largest_without, bound);
}

// The stream of healthy clients: no key is frequent, and none may seem to be.
TEST(HotKeys, FindNothingInAUniformStream) {
    std::mt19937_64 random(1);
    std::uniform_int_distribution<std::uint64_t> uniform(1, 100'000);
    const Error error = measure(300'000, [&] { return uniform(random); });
    print("uniform stream", error);
    EXPECT_LE(error.most_missed, bound);
    EXPECT_LE(error.largest_without, bound);
}

// One client in ten sends a constant; the others are healthy.
TEST(HotKeys, FindAConstantKeyAmongOthers) {
    std::mt19937_64 random(1);
    Sketch sketch{};
    std::int64_t sent = 0;
    for (int i = 0; i < 300'000; ++i) {
        const bool constant = random() % 10 == 0;
        sent += constant ? 1 : 0;
        count_hot_key(sketch, digest(constant ? 0 : random()), 1, noon + i);
    }
    const HotKey* place = find(sketch, 0);
    ASSERT_NE(place, nullptr);
    EXPECT_LE(counted(*place), sent);
    EXPECT_GE(counted(*place), sent - 100) << "only what came before it kept its place is missed";
}

TEST(HotKeys, TheFirstReplaysAreAllCounted) {
    for (std::uint32_t random = 0; random < 100; ++random) {
        EXPECT_EQ(replay_weight(0, random), 1);
        EXPECT_EQ(replay_weight(counted_each - 1, random), 1);
        EXPECT_EQ(replay_weight(counted_each, random), random % sampled_share == 0 ? 16 : 0);
        EXPECT_EQ(replay_weight(UINT64_MAX, random), random % sampled_share == 0 ? 16 : 0);
    }
}

// Over many samples of 10,000 events, the standard error is that of the header: 4 %.
TEST(HotKeys, TheSampleIsUnbiased) {
    std::mt19937_64 random(1);
    constexpr int samples = 1000;
    constexpr int events = 10'000;
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < samples; ++i) {
        std::int64_t estimate = 0;
        for (int n = 0; n < events; ++n)
            estimate += replay_weight(counted_each, static_cast<std::uint32_t>(random()));
        const double error = static_cast<double>(estimate) / events - 1;
        sum += error;
        squares += error * error;
    }
    const double deviation = std::sqrt(squares / samples);
    std::printf("sample of 10,000: bias %.3f %%, standard error %.2f %%\n", 100 * sum / samples,
                100 * deviation);
    EXPECT_NEAR(sum / samples, 0, 0.005);
    EXPECT_NEAR(deviation, std::sqrt(15.0 / events), 0.004);
}
