#include "pg/store/leaf_probe.hpp"

#include "core/bytes.hpp"
#include "pg/server/compat.hpp"

namespace idem::pg {
namespace {

// A uuid as two numbers, which are in the order of uuid_ops.
using Place = std::pair<std::uint64_t, std::uint64_t>;

Place place_of(const void* uuid) {
    const core::Bytes bytes{static_cast<const std::byte*>(uuid), UUID_LEN};
    return {core::from_big_endian(bytes.first(8)), core::from_big_endian(bytes.last(8))};
}

constexpr LeafEntry unclear{LeafEntry::Answer::unclear, {}, InvalidBuffer};

// A page of the index that is locked for reading.
class IndexPage {
  public:
    explicit IndexPage(Buffer buffer)
        : page_(BufferGetPage(buffer)),
          opaque_(BTPageGetOpaque(page_)),
          end_(OffsetNumberNext(PageGetMaxOffsetNumber(page_))) {}

    bool is_leaf() const { return P_ISLEAF(opaque_); }

    // Whether the entries of the digest, if there are any, are on this page or below it, and
    // nowhere else. The page above has shown that none are to the left; since we have read that
    // one, the page may have been split or deleted, and the digest's place may be to the right. An
    // entry that equals the upper bound may be on either side.
    bool bounds(const Place& digest) const {
        if (P_IGNORE(opaque_)) return false;
        return P_RIGHTMOST(opaque_) || digest < place_at(P_HIKEY);
    }

    // The page below this one that bounds the digest; InvalidBlockNumber if the digest equals the
    // bound between two of them.
    BlockNumber child(const Place& digest) const {
        Assert(!is_leaf());
        const OffsetNumber first = P_FIRSTDATAKEY(opaque_);  // has no key: it has no lower bound
        Assert(first < end_);
        const OffsetNumber next = position(digest, OffsetNumberNext(first));
        if (is_at(digest, next)) return InvalidBlockNumber;
        return BTreeTupleGetDownLink(entry_at(OffsetNumberPrev(next)));
    }

    // The digest's first entry in a leaf page that bounds it. A scan would pass over one that is
    // known to be dead, and take a posting list apart.
    LeafEntry first_entry(const Place& digest) const {
        Assert(is_leaf() && bounds(digest));
        const OffsetNumber at = position(digest, P_FIRSTDATAKEY(opaque_));
        if (!is_at(digest, at)) return {LeafEntry::Answer::none, {}, InvalidBuffer};
        const IndexTuple entry = entry_at(at);
        Assert(!BTreeTupleIsPivot(entry));
        if (ItemIdIsDead(PageGetItemId(page_, at)) || BTreeTupleIsPosting(entry)) return unclear;
        return {LeafEntry::Answer::first, entry->t_tid, InvalidBuffer};
    }

  private:
    IndexTuple entry_at(OffsetNumber at) const {
        return reinterpret_cast<IndexTuple>(PageGetItem(page_, PageGetItemId(page_, at)));
    }

    // The first column of the entry.
    Place place_at(OffsetNumber at) const {
        const IndexTuple entry = entry_at(at);
        Assert(!IndexTupleHasNulls(entry));
        return place_of(reinterpret_cast<const char*>(entry) +
                        IndexInfoFindDataOffset(entry->t_info));
    }

    bool is_at(const Place& digest, OffsetNumber at) const {
        return at < end_ && place_at(at) == digest;
    }

    // That of the first entry from here on that is not before the digest.
    OffsetNumber position(const Place& digest, OffsetNumber low) const {
        OffsetNumber high = end_;
        while (low < high) {
            const auto middle = static_cast<OffsetNumber>((low + high) / 2);
            if (place_at(middle) < digest)
                low = OffsetNumberNext(middle);
            else
                high = middle;
        }
        return low;
    }

    Page page_;
    BTPageOpaque opaque_;
    OffsetNumber end_;
};

// A valid btree in the order of Place. Not during recovery, where pages are kept from reuse by
// other means.
bool can_probe(Relation index) {
    return index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisvalid &&
           index->rd_opcintype[0] == UUIDOID && index->rd_indoption[0] == 0 &&
           !RecoveryInProgress();
}

// Descends to the only leaf page that can have entries of the digest. Without success, the buffer
// is another page. A page that is locked is never deleted, and none that we are led to is reused as
// long as our snapshot is older than its deletion.
bool find_leaf(Relation index, const Place& digest, Buffer& buffer) {
    for (;;) {
        const IndexPage page(buffer);
        if (!page.bounds(digest)) return false;
        if (page.is_leaf()) return true;
        const BlockNumber child = page.child(digest);
        if (child == InvalidBlockNumber) return false;
        buffer = _bt_relandgetbuf(index, buffer, child, BT_READ);
    }
}

}  // namespace

LeafEntry probe_leaf(Relation table, Relation index, const pg_uuid_t& digest) {
    Assert(CheckRelationLockedByMe(index, AccessShareLock, true));
    Assert(ActiveSnapshotSet());
    if (!can_probe(index)) return unclear;
    Buffer buffer = compat::btree_root(index, table);
    if (!BufferIsValid(buffer)) return unclear;  // the index is empty
    const Place place = place_of(&digest);
    LeafEntry found =
        find_leaf(index, place, buffer) ? IndexPage(buffer).first_entry(place) : unclear;
    if (found.answer != LeafEntry::Answer::unclear) pgstat_count_index_scan(index);
    if (found.answer == LeafEntry::Answer::first) {
        _bt_unlockbuf(index, buffer);
        found.leaf = buffer;
    } else {
        _bt_relbuf(index, buffer);
    }
    return found;
}

}  // namespace idem::pg
