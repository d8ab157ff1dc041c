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
    EXPECT_EQ(two(std::string(127, 'a'), "").substr(0, 3),
              "s\x7f"
              "a");
    EXPECT_EQ(two(std::string(128, 'a'), "").substr(0, 4),
              "s\x80\x01"
              "a");
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

Fingerprint of_text(std::string_view text) {
    Hmac hmac(counting<Secret>());
    Fingerprint out{0, 1, {}};
    hmac.write(as_bytes(text));
    EXPECT_TRUE(hmac.finish(out.mac));
    return out;
}

}  // namespace

TEST(Fingerprint, IsHmacSha256OfTheCanonicalForm) {
    Hmac hmac(counting<Secret>());
    Hash out{};
    CanonicalWriter<Hmac> writer(hmac);
    writer.begin_object();
    writer.member("a");
    writer.number({false, 0, as_bytes(std::string_view("\x00\x01", 2))});
    writer.end_object();
    ASSERT_TRUE(hmac.finish(out));
    EXPECT_EQ(hex(out), "09e3ac5a42206f3c255e545f1430d2869cd984f002d0db2c42bb310669436735");
}

TEST(Fingerprint, IsStoredWithVersionAndSecretId) {
    Fingerprint from = of_text("request");
    from.secret_id = 0x01020304;
    const StoredFingerprint stored = pack(from);
    Fingerprint to{};
    ASSERT_TRUE(unpack(stored.bytes(), to));
    EXPECT_EQ(to.secret_id, from.secret_id);
    EXPECT_TRUE(same_mac(to, from));
    EXPECT_EQ(hex(stored.bytes()), "0184868808" + hex(Bytes(from.mac).first(16)));
}

TEST(Fingerprint, IsStoredWithTheLeadingBytesOfTheMac) {
    const Fingerprint whole = of_text("request");
    const Fingerprint other = of_text("another");
    const std::string mac = hex(Bytes(whole.mac).first(16));
    const std::pair<std::uint32_t, std::string> ids[] = {
        {1, "01"},        {0x7f, "7f"},       {0x80, "8001"},
        {0x3fff, "ff7f"}, {0x4000, "808001"}, {0x80000000, "8080808008"}};
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
    const Fingerprint whole = of_text("request");
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
    const Fingerprint from = of_text("request");
    EXPECT_FALSE(is_of_any(pack(from).bytes()));
}

TEST(Fingerprint, IsStoredWithTheNumberOfItsList) {
    Fingerprint from = of_text("request");
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

TEST(Fingerprint, HasItsSecretIdInOneForm) {
    Fingerprint from = of_text("request");
    from.secret_id = 1;
    std::vector<std::byte> bytes{std::byte{1}, std::byte{0x81}, std::byte{0}};
    const Bytes mac = Bytes(from.mac).first(16);
    bytes.insert(bytes.end(), mac.begin(), mac.end());
    Fingerprint to{};
    EXPECT_FALSE(unpack(bytes, to)) << "longer than needed";
    bytes[2] = std::byte{1};
    ASSERT_TRUE(unpack(bytes, to));
    EXPECT_EQ(to.secret_id, 0x81U);
}

TEST(Fingerprint, HasTheNumberOfItsListInOneForm) {
    Fingerprint from = of_text("request");
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

// Records that were moved from the SQL edition.
TEST(Fingerprint, HasTheFormWithWhichItWasMade) {
    Fingerprint from = of_text("request");
    from.form = FingerprintForm::text;
    const std::pair<ListNumber, std::string> versions[] = {{0, "02"}, {5, "8205"}};
    for (const auto& [list, version] : versions) {
        from.list = list;
        const StoredFingerprint stored = pack(from);
        EXPECT_EQ(hex(stored.bytes()), version + "01" + hex(Bytes(from.mac).first(16)));
        Fingerprint to{};
        ASSERT_TRUE(unpack(stored.bytes(), to));
        EXPECT_EQ(to.form, FingerprintForm::text);
        EXPECT_EQ(list_number(stored.bytes()), list);
        ASSERT_TRUE(unpack(pack(of_text("request")).bytes(), to));
        EXPECT_EQ(to.form, FingerprintForm::canonical);
    }
}

TEST(Fingerprint, OfNoOtherFormIsRead) {
    const Fingerprint from = of_text("request");
    Fingerprint to{};
    EXPECT_FALSE(unpack({}, to));
    const StoredFingerprint stored = pack(from);
    std::vector<std::byte> bytes(stored.bytes().begin(), stored.bytes().end());
    ASSERT_TRUE(unpack(bytes, to));
    bytes[0] = std::byte{3};
    EXPECT_FALSE(unpack(bytes, to)) << "of a later version";
    bytes[0] = std::byte{1};
    bytes.pop_back();
    EXPECT_FALSE(unpack(bytes, to)) << "too short";
    bytes.resize(38);
    EXPECT_FALSE(unpack(bytes, to)) << "too long";
}
