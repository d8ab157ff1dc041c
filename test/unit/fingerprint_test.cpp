// The fingerprint: HMAC-SHA-256 checked against another implementation, and the buffer's edges.
#include "core/fingerprint.hpp"

#include "core/canonical.hpp"
#include "support.hpp"

using namespace idem::core;
using idem::test::counting;
using idem::test::hex;

namespace {

Fingerprint of_pieces(const Secret& secret, std::string_view text, std::size_t piece) {
    FingerprintSink sink;
    Fingerprint out{};
    EXPECT_TRUE(sink.begin(secret, 1));
    for (std::size_t at = 0; at < text.size(); at += piece)
        sink.write(as_bytes(text.substr(at, piece)));
    EXPECT_TRUE(sink.finish(out));
    return out;
}

}  // namespace

TEST(Fingerprint, IsHmacSha256OfTheCanonicalForm) {
    FingerprintSink sink;
    Fingerprint out{};
    ASSERT_TRUE(sink.begin(counting<Secret>(), 1));
    Canonical<FingerprintSink> writer(sink);
    writer.begin_object();
    writer.member("a");
    writer.number({false, 0, as_bytes(std::string_view("\x00\x01", 2))});
    writer.end_object();
    ASSERT_TRUE(sink.finish(out));
    EXPECT_EQ(hex(out.mac), "d5cd09d4c997d729d8e1fac18053a0c68476eb357e2516415c224c4691b4bd93");
}

TEST(Fingerprint, DoesNotDependOnHowItWasWritten) {
    for (std::size_t size : {0U, 1U, 511U, 512U, 513U, 1024U, 5000U}) {
        const std::string text(size, 'x');
        const auto whole = of_pieces(counting<Secret>(), text, size + 1);
        for (std::size_t piece : {1U, 7U, 511U, 512U, 513U})
            EXPECT_TRUE(same_mac(of_pieces(counting<Secret>(), text, piece), whole))
                << size << " by " << piece;
        EXPECT_FALSE(same_mac(of_pieces(counting<Secret>(), text + "x", 100), whole)) << size;
    }
}

TEST(Fingerprint, DependsOnTheSecretEachTime) {
    const auto first = of_pieces(counting<Secret>(), "request", 100);
    const auto other = of_pieces(counting<Secret>(1), "request", 100);
    EXPECT_FALSE(same_mac(first, other));
    EXPECT_TRUE(same_mac(of_pieces(counting<Secret>(), "request", 100), first));
}

TEST(Fingerprint, StartsCleanAfterAWalkThatWasCutShort) {
    const auto whole = of_pieces(counting<Secret>(), "request", 100);
    FingerprintSink cut;
    for (std::size_t left_behind : {0U, 1U, 511U, 512U, 2000U}) {
        ASSERT_TRUE(cut.begin(counting<Secret>(), 1));
        cut.write(as_bytes(std::string(left_behind, 'y')));
        EXPECT_TRUE(same_mac(of_pieces(counting<Secret>(), "request", 100), whole)) << left_behind;

        // The same sink again: what it had buffered is gone too.
        ASSERT_TRUE(cut.begin(counting<Secret>(), 1));
        cut.write(as_bytes(std::string(left_behind, 'y')));
        Fingerprint out{};
        ASSERT_TRUE(cut.begin(counting<Secret>(), 7));
        cut.write(as_bytes("request"));
        ASSERT_TRUE(cut.finish(out));
        EXPECT_TRUE(same_mac(out, whole)) << left_behind;
        EXPECT_EQ(out.secret_id, 7U);
        EXPECT_EQ(out.version, fingerprint_version);
    }
}

TEST(Fingerprint, IsStoredWithVersionAndSecret) {
    Fingerprint from = of_pieces(counting<Secret>(), "request", 100);
    from.secret_id = 0x01020304;
    auto stored = pack(from);
    Fingerprint to{};
    ASSERT_TRUE(unpack(stored, to));
    EXPECT_EQ(to.secret_id, from.secret_id);
    EXPECT_TRUE(same_mac(to, from));
    EXPECT_EQ(hex(Bytes(stored).first(5)), "0101020304");

    EXPECT_FALSE(unpack(Bytes(stored).first(36), to));
    stored[0] = std::byte{2};
    EXPECT_FALSE(unpack(stored, to));
}

TEST(Fingerprint, EveryByteOfTheMacCounts) {
    const Fingerprint a = of_pieces(counting<Secret>(), "request", 100);
    for (std::size_t i = 0; i < a.mac.size(); ++i) {
        Fingerprint b = a;
        b.mac[i] ^= std::byte{1};
        EXPECT_FALSE(same_mac(a, b)) << i;
    }
}
