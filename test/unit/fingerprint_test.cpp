// The canonical form of a request, and its fingerprint.
#include "core/fingerprint.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support.hpp"

using namespace idem::core;
using idem::test::counting;
using idem::test::hex;

namespace {

struct Text {
    std::string bytes;
    void write(Bytes in) { bytes.append(reinterpret_cast<const char*>(in.data()), in.size()); }
};
using Writer = CanonicalWriter<Text>;

std::string form(const std::function<void(Writer&)>& walk) {
    Text text;
    Writer writer(text);
    walk(writer);
    return text.bytes;
}

std::string number(bool negative, int weight, std::vector<std::uint16_t> digits) {
    std::string wire;
    for (auto d : digits) {
        const auto bytes = big_endian<2>(d);
        wire.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return form([&](Writer& w) { w.number({negative, weight, as_bytes(wire)}); });
}

// A JSON value for the property test: two values must have the same form exactly when the trees
// are equal.
struct Tree {
    char kind;         // n t f s + [ {
    std::string text;  // the string, or the number's only digit, which has weight 0
    std::vector<Tree> items;
    std::map<std::string, Tree> members;
    friend bool operator==(const Tree&, const Tree&) = default;
};

// Writes every number with `padding` leading and trailing zero digits.
void walk(const Tree& tree, Writer& w, int padding) {
    switch (tree.kind) {
        case 'n':
            return w.null();
        case 't':
        case 'f':
            return w.boolean(tree.kind == 't');
        case 's':
            return w.string(tree.text);
        case '+': {
            const std::string zeros(2 * static_cast<std::size_t>(padding), '\0');
            return w.number({false, padding, as_bytes(zeros + tree.text + zeros)});
        }
        case '[':
            w.begin_array();
            for (const Tree& item : tree.items) walk(item, w, padding);
            return w.end_array();
        default:
            w.begin_object();
            for (const auto& [name, value] : tree.members) {
                w.member(name);
                walk(value, w, padding);
            }
            return w.end_object();
    }
}

Tree random_tree(std::mt19937& rng, int depth) {
    const auto pick = [&](unsigned n) { return static_cast<unsigned>(rng() % n); };
    const char kind = "ntfs+[{"[depth == 0 ? pick(5) : pick(7)];
    Tree tree{kind, {}, {}, {}};
    if (kind == 's') tree.text = std::string(pick(3), "[{m"[pick(3)]);
    if (kind == '+') tree.text = pick(2) ? std::string("\x00\x01", 2) : std::string("\x00\x02", 2);
    if (kind == '[')
        for (unsigned i = pick(3); i > 0; --i) tree.items.push_back(random_tree(rng, depth - 1));
    if (kind == '{')
        for (unsigned i = pick(3); i > 0; --i)
            tree.members.emplace(std::string(pick(3), 'a'), random_tree(rng, depth - 1));
    return tree;
}

}  // namespace

TEST(CanonicalWriter, NumbersAreComparedByValue) {
    const auto one = number(false, 0, {1});
    EXPECT_EQ(number(false, 0, {1, 0, 0}), one);  // 1.00000000
    EXPECT_EQ(number(false, 2, {0, 0, 1}), one);  // 00000000 1
    EXPECT_NE(number(true, 0, {1}), one);         // -1
    EXPECT_NE(number(false, 1, {1}), one);        // 10000
    EXPECT_NE(number(false, -1, {1}), one);       // 0.0001
    EXPECT_NE(number(false, 0, {2}), one);
}

TEST(CanonicalWriter, ThereIsOneZero) {
    const auto zero = number(false, 0, {});
    EXPECT_EQ(number(false, 0, {0}), zero);
    EXPECT_EQ(number(true, 0, {}), zero);
    EXPECT_EQ(number(false, -3, {0, 0}), zero);
}

TEST(CanonicalWriter, LongDecimalsAreNeverRounded) {
    EXPECT_NE(number(false, 4, {9007, 1992, 5474, 992, 1}),
              number(false, 4, {9007, 1992, 5474, 992, 2}));
    EXPECT_NE(number(false, -1, {1, 0, 0, 0, 0, 0, 1}), number(false, -1, {1, 0, 0, 0, 0, 0, 2}));
}

TEST(CanonicalWriter, TypesDiffer) {
    const auto text = form([](Writer& w) { w.string("1"); });
    EXPECT_NE(text, number(false, 0, {1}));
    EXPECT_NE(form([](Writer& w) { w.member("1"); }), text);
    EXPECT_NE(form([](Writer& w) { w.null(); }), form([](Writer& w) { w.string("n"); }));
    EXPECT_NE(form([](Writer& w) { w.boolean(true); }), form([](Writer& w) { w.boolean(false); }));
}

TEST(CanonicalWriter, AdjacentStringsAreSeparated) {
    const auto two = [](std::string_view a, std::string_view b) {
        return form([&](Writer& w) {
            w.string(a);
            w.string(b);
        });
    };
    EXPECT_NE(two("ab", "c"), two("a", "bc"));
    EXPECT_NE(two("", "abc"), two("abc", ""));
}

TEST(CanonicalWriter, BytesAreEqualExactlyWhenValuesAre) {
    std::mt19937 rng(20261121);
    std::map<std::string, Tree> seen;
    int met_again = 0;
    for (int i = 0; i < 20000; ++i) {
        const Tree tree = random_tree(rng, 3);
        const auto bytes = form([&](Writer& w) { walk(tree, w, 0); });
        const auto otherwise = form([&](Writer& w) { walk(tree, w, 1 + i % 3); });
        ASSERT_EQ(otherwise, bytes) << "the same value, written in two ways";
        const auto [at, fresh] = seen.emplace(bytes, tree);
        met_again += !fresh;
        ASSERT_EQ(at->second, tree) << idem::test::hex(as_bytes(bytes));
    }
    EXPECT_GT(met_again, 100);
    EXPECT_GT(seen.size(), 1000U);
}

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
    CanonicalWriter<FingerprintSink> writer(sink);
    writer.begin_object();
    writer.member("a");
    writer.number({false, 0, as_bytes(std::string_view("\x00\x01", 2))});
    writer.end_object();
    ASSERT_TRUE(sink.finish(out));
    EXPECT_EQ(hex(out.mac), "d5cd09d4c997d729d8e1fac18053a0c68476eb357e2516415c224c4691b4bd93");
}

TEST(Fingerprint, DoesNotDependOnTheSizesOfWrites) {
    for (std::size_t size : {0U, 1U, 511U, 512U, 513U, 1024U, 5000U}) {
        const std::string text(size, 'x');
        const auto whole = of_pieces(counting<Secret>(), text, size + 1);
        for (std::size_t piece : {1U, 7U, 511U, 512U, 513U})
            EXPECT_TRUE(same_mac(of_pieces(counting<Secret>(), text, piece), whole))
                << size << " by " << piece;
        EXPECT_FALSE(same_mac(of_pieces(counting<Secret>(), text + "x", 100), whole)) << size;
    }
}

TEST(Fingerprint, KeepsTheOrderOfShortAndLongWrites) {
    const std::string pieces[] = {"a", std::string(600, 'b'), "c", std::string(513, 'd'), "e"};
    std::string text;
    FingerprintSink sink;
    ASSERT_TRUE(sink.begin(counting<Secret>(), 1));
    for (const std::string& piece : pieces) {
        sink.write(as_bytes(piece));
        text += piece;
    }
    Fingerprint out{};
    ASSERT_TRUE(sink.finish(out));
    EXPECT_TRUE(same_mac(out, of_pieces(counting<Secret>(), text, text.size())));
}

TEST(Fingerprint, ChangesWithTheSecret) {
    const auto first = of_pieces(counting<Secret>(), "request", 100);
    const auto other = of_pieces(counting<Secret>(1), "request", 100);
    EXPECT_FALSE(same_mac(first, other));
    EXPECT_TRUE(same_mac(of_pieces(counting<Secret>(), "request", 100), first));
}

TEST(Fingerprint, AbandonsAnUnfinishedWalk) {
    const auto whole = of_pieces(counting<Secret>(), "request", 100);
    FingerprintSink cut;
    for (std::size_t left_behind : {0U, 1U, 511U, 512U, 2000U}) {
        ASSERT_TRUE(cut.begin(counting<Secret>(), 1));
        cut.write(as_bytes(std::string(left_behind, 'y')));
        EXPECT_TRUE(same_mac(of_pieces(counting<Secret>(), "request", 100), whole)) << left_behind;

        // The same sink can be used again: its buffer is empty.
        ASSERT_TRUE(cut.begin(counting<Secret>(), 1));
        cut.write(as_bytes(std::string(left_behind, 'y')));
        Fingerprint out{};
        ASSERT_TRUE(cut.begin(counting<Secret>(), 7));
        cut.write(as_bytes("request"));
        ASSERT_TRUE(cut.finish(out));
        EXPECT_TRUE(same_mac(out, whole)) << left_behind;
        EXPECT_EQ(out.secret_id, 7U);
    }
}

TEST(Fingerprint, IsStoredWithVersionAndSecretId) {
    Fingerprint from = of_pieces(counting<Secret>(), "request", 100);
    from.secret_id = 0x01020304;
    const StoredFingerprint stored = pack(from);
    Fingerprint to{};
    ASSERT_TRUE(unpack(stored.bytes(), to));
    EXPECT_EQ(to.secret_id, from.secret_id);
    EXPECT_TRUE(same_mac(to, from));
    EXPECT_EQ(hex(stored.bytes()), "0101020304" + hex(Bytes(from.mac).first(16)));
}

TEST(Fingerprint, IsStoredWithTheLeadingBytesOfTheMac) {
    const Fingerprint whole = of_pieces(counting<Secret>(), "request", 100);
    const Fingerprint other = of_pieces(counting<Secret>(), "another", 100);
    const std::string mac = hex(Bytes(whole.mac).first(16));
    const std::pair<std::uint32_t, std::string> ids[] = {
        {1, "01"},           {0xff, "ff"},         {0x100, "0100"},
        {0x10203, "010203"}, {0xffffff, "ffffff"}, {0x80000000, "80000000"}};
    for (const auto& [id, bytes] : ids) {
        Fingerprint from = whole;
        from.secret_id = id;
        const StoredFingerprint stored = pack(from);
        EXPECT_EQ(hex(stored.bytes()), "01" + bytes + mac);

        Fingerprint to{};
        ASSERT_TRUE(unpack(stored.bytes(), to)) << bytes;
        EXPECT_EQ(to.secret_id, id);
        EXPECT_TRUE(same_mac(to, whole)) << "with a whole one";
        EXPECT_TRUE(same_mac(whole, to)) << "with a whole one";
        EXPECT_TRUE(same_mac(to, from));
        EXPECT_FALSE(same_mac(to, other));
        EXPECT_EQ(hex(pack(to).bytes()), hex(stored.bytes()));
    }
}

// Every byte that is stored counts.
TEST(Fingerprint, DiffersWithEachStoredByteOfTheMac) {
    const Fingerprint whole = of_pieces(counting<Secret>(), "request", 100);
    for (std::size_t i = 0; i < whole.mac.size(); ++i) {
        Fingerprint changed = whole;
        changed.mac[i] ^= std::byte{1};
        EXPECT_EQ(same_mac(changed, whole), i >= 16) << i;
    }
}

TEST(Fingerprint, OfAnyRequestIsNoOtherFingerprint) {
    EXPECT_TRUE(is_of_any(fingerprint_of_any));
    EXPECT_FALSE(is_of_any({}));
    EXPECT_FALSE(is_of_any(std::array{std::byte{1}}));
    EXPECT_FALSE(is_of_any(std::array{std::byte{0}, std::byte{0}}));
    Fingerprint to{};
    EXPECT_FALSE(unpack(fingerprint_of_any, to));
    const Fingerprint from = of_pieces(counting<Secret>(), "request", 100);
    EXPECT_FALSE(is_of_any(pack(from).bytes()));
}

TEST(Fingerprint, IsStoredWithTheNumberOfItsList) {
    Fingerprint from = of_pieces(counting<Secret>(), "request", 100);
    from.secret_id = 7;
    const std::string rest = "07" + hex(Bytes(from.mac).first(16));
    const std::pair<ListNumber, std::string> numbers[] = {{0, "01"},
                                                          {1, "8101"},
                                                          {0x7f, "817f"},
                                                          {0x80, "818001"},
                                                          {0x3fff, "81ff7f"},
                                                          {0x4000, "81808001"},
                                                          {0xffffffff, "81ffffffff0f"}};
    for (const auto& [number, bytes] : numbers) {
        from.list = number;
        const StoredFingerprint stored = pack(from);
        EXPECT_EQ(hex(stored.bytes()), bytes + rest);
        EXPECT_EQ(list_number(stored.bytes()), number);
        Fingerprint to{};
        ASSERT_TRUE(unpack(stored.bytes(), to)) << number;
        EXPECT_EQ(to.list, number);
        EXPECT_EQ(to.secret_id, 7U);
        EXPECT_TRUE(same_mac(to, from));
        for (std::size_t size = 0; size < stored.size; ++size)
            EXPECT_FALSE(unpack(stored.bytes().first(size), to)) << number << ": " << size;
    }
}

TEST(Fingerprint, HasTheNumberOfItsListInOneForm) {
    Fingerprint from = of_pieces(counting<Secret>(), "request", 100);
    const StoredFingerprint stored = pack(from);
    const auto with = [&](std::vector<int> number) {
        std::vector<std::byte> bytes{std::byte{0x81}};
        for (const int byte : number) bytes.push_back(static_cast<std::byte>(byte));
        bytes.insert(bytes.end(), stored.bytes().begin() + 1, stored.bytes().end());
        return bytes;
    };
    Fingerprint to{};
    EXPECT_TRUE(unpack(with({1}), to));
    EXPECT_FALSE(unpack(with({0}), to)) << "no list has a number in front";
    EXPECT_FALSE(unpack(with({0x81, 0}), to)) << "longer than needed";
    EXPECT_FALSE(unpack(with({0xff, 0xff, 0xff, 0xff, 0x1f}), to)) << "beyond 32 bits";
    EXPECT_FALSE(unpack(with({0x80, 0x80, 0x80, 0x80, 0x80, 1}), to)) << "too long";
    EXPECT_EQ(list_number({}), 0U);
    EXPECT_EQ(list_number(fingerprint_of_any), 0U);
    EXPECT_EQ(list_number(std::array{std::byte{0xff}, std::byte{1}}), 0U) << "another version";
    EXPECT_EQ(list_number(std::array{std::byte{0x81}, std::byte{0x80}}), 0U) << "cut off";
}

TEST(Fingerprint, OfNoOtherFormIsRead) {
    const Fingerprint from = of_pieces(counting<Secret>(), "request", 100);
    Fingerprint to{};
    EXPECT_FALSE(unpack({}, to));
    const StoredFingerprint stored = pack(from);
    std::vector<std::byte> bytes(stored.bytes().begin(), stored.bytes().end());
    ASSERT_TRUE(unpack(bytes, to));
    bytes[0] = std::byte{2};
    EXPECT_FALSE(unpack(bytes, to)) << "of a later version";
    bytes[0] = std::byte{1};
    bytes.pop_back();
    EXPECT_FALSE(unpack(bytes, to)) << "too short";
    bytes.resize(38);
    EXPECT_FALSE(unpack(bytes, to)) << "too long";
}
