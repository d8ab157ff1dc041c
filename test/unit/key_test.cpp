// The length of keys, those that are UUIDs, and the time and age of those that contain a time.
#include "core/key.hpp"

#include <random>
#include <string>

#include "support.hpp"

using namespace idem::core;

TEST(CanonicalUuid, GivesItsTextBack) {
    std::mt19937_64 rng(20261121);
    for (int i = 0; i < 1000; ++i) {
        Uuid uuid;
        for (std::byte& b : uuid) b = static_cast<std::byte>(rng());
        const UuidText text = uuid_text(uuid);
        EXPECT_EQ(canonical_uuid({text.data(), text.size()}), uuid) << text.data();
    }
    for (std::string_view key :
         {"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
          "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d", "f47ac10b-58cc-4372-a567-0e02b2c3d479"}) {
        const auto uuid = canonical_uuid(key);
        ASSERT_TRUE(uuid) << key;
        const UuidText text = uuid_text(*uuid);
        EXPECT_EQ(std::string_view(text.data(), text.size()), key);
    }
    const auto uuid = canonical_uuid("00010203-0405-0607-0809-0a0b0c0d0e0f");
    ASSERT_TRUE(uuid);
    EXPECT_EQ(idem::test::hex(*uuid), "000102030405060708090a0b0c0d0e0f");
}

// A text that differs from the canonical form in any byte is another key. Each byte of a UUID is
// replaced by every other value: only the 15 other digits at the place of a digit are left.
TEST(CanonicalUuid, IsNoOtherText) {
    const std::string uuid = "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d";
    for (std::size_t i = 0; i < uuid.size(); ++i)
        for (int c = 0; c < 256; ++c) {
            std::string key = uuid;
            key[i] = static_cast<char>(c);
            const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
            const bool canonical = uuid[i] == '-' ? c == '-' : digit;
            EXPECT_EQ(canonical_uuid(key).has_value(), canonical) << i << ": " << c;
        }
    for (const char* key : {
             "", "order-4711",
             "0190B8F3-8C5E-7D2A-9B1C-4F5E6A7B8C9D",     // upper case
             "0190b8f38c5e7d2a9b1c4f5e6a7b8c9d",         // no hyphens
             "0190-b8f3-8c5e-7d2a-9b1c-4f5e-6a7b-8c9d",  // hyphens that uuid's input accepts, too
             "{0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d}",   // braces
             "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d ",    // too long
             "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9",      // too short
         })
        EXPECT_EQ(canonical_uuid(key), std::nullopt) << key;
}

TEST(EmbeddedTime, OfUuidVersion7) {
    EXPECT_EQ(embedded_time("0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d"), 0x0190b8f38c5eU);
    EXPECT_EQ(embedded_time("0190B8F3-8C5E-7D2A-9B1C-4F5E6A7B8C9D"), 0x0190b8f38c5eU);
    EXPECT_EQ(embedded_time("ffffffff-ffff-7fff-bfff-ffffffffffff"), 0xffffffffffffU);
}

TEST(EmbeddedTime, OfUlid) {
    EXPECT_EQ(embedded_time("01J2WF7330Q8XYZABCDEFGHJKM"), 1721089887328U);
    EXPECT_EQ(embedded_time("01j2wf7330q8xyzabcdefghjkm"), 1721089887328U);
    EXPECT_EQ(embedded_time("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), 0xffffffffffffU);
}

TEST(EmbeddedTime, OfNoOtherKey) {
    for (const char* key : {
             "", "order-4711",
             "0190b8f3-8c5e-4d2a-9b1c-4f5e6a7b8c9d",   // version 4
             "0190b8f3-8c5e-7d2a-1b1c-4f5e6a7b8c9d",   // not the RFC's variant
             "0190b8f3-8c5e-7d2a-cb1c-4f5e6a7b8c9d",   // not the RFC's variant either
             "0190b8f38c5e7d2a9b1c4f5e6a7b8c9d",       // no hyphens
             "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9g",   // not hexadecimal
             "0190b8f3+8c5e-7d2a-9b1c-4f5e6a7b8c9d",   // not a hyphen
             "0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d0",  // too long
             "81J2WF7330Q8XYZABCDEFGHJKM",             // more than 128 bits
             "01J2WF7330Q8XYZABCDEFGHJKU",             // U is not a digit
             "01J2WF7330Q8XYZABCDEFGHJK",              // too short
         })
        EXPECT_EQ(embedded_time(key), std::nullopt) << key;
}

TEST(KeyAge, IsComparedWithTheTtl) {
    constexpr std::int64_t made = 0x0190b8f38c5eLL * 1000;
    constexpr std::int64_t day = 86'400'000'000;
    for (const char* key : {"0190b8f3-8c5e-7d2a-9b1c-4f5e6a7b8c9d", "01J2WF732YQ8XYZABCDEFGHJKM"}) {
        EXPECT_FALSE(is_stale(key, made, day));
        EXPECT_FALSE(is_stale(key, made + day, day));
        EXPECT_TRUE(is_stale(key, made + day + 1, day));
        EXPECT_FALSE(is_stale(key, made - future_tolerance, day));
        EXPECT_TRUE(is_stale(key, made - future_tolerance - 1, day));
    }
}

TEST(KeyAge, Extremes) {
    EXPECT_TRUE(is_stale("ffffffff-ffff-7fff-bfff-ffffffffffff", 0, 1));
    EXPECT_TRUE(is_stale("00000000-0000-7000-8000-000000000000", 1'000'000'000'000'000, 1));
}

TEST(KeyAge, IsUnknownWithoutATime) {
    for (const char* key : {"order-4711", "f47ac10b-58cc-4372-a567-0e02b2c3d479"})
        EXPECT_FALSE(is_stale(key, 1'700'000'000'000'000, 1)) << key;
}
