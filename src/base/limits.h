// Every cap of the project in one place, so that nothing grows without a bound and a reader can see them together.
// A limit that a user can meet is named in the error that reports it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold::limits {

// --- checkpoints -----------------------------------------------------------------------------------------------------
inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100ull << 20;
inline constexpr std::uint64_t kJsonFileBytesMax = 256ull << 20;
inline constexpr std::uint64_t kTensorCountMax = 1u << 20;
inline constexpr int kTensorDimensionsMax = 8;
inline constexpr std::uint64_t kGgufMetadataCountMax = 1u << 16;
inline constexpr std::uint64_t kGgufStringBytesMax = 64ull << 20;
inline constexpr std::uint64_t kGgufArrayLengthMax = 1ull << 24;
inline constexpr int kShardCountMax = 4096;
inline constexpr int kCheckpointJsonDepthMax = 64;
inline constexpr std::size_t kTensorNameBytesMax = 1024;
inline constexpr std::size_t kGgufKeyBytesMax = 65'535;
inline constexpr std::uint64_t kGgufConfigArrayLengthMax = 65'536;  // elements of all arrays in config()

// --- models ----------------------------------------------------------------------------------------------------------
inline constexpr std::int64_t kLayerCountMax = 1024;
inline constexpr std::int64_t kHiddenSizeMax = 1 << 17;
inline constexpr std::int64_t kIntermediateSizeMax = 1 << 20;
inline constexpr std::int64_t kHeadCountMax = 1024;
inline constexpr std::int64_t kHeadDimensionMax = 1024;
inline constexpr std::int64_t kVocabularySizeMax = 1 << 21;
inline constexpr std::int64_t kExpertCountMax = 4096;
inline constexpr std::int64_t kExpertsPerTokenMax = 64;
inline constexpr std::int64_t kContextTokensMax = 1 << 22;
inline constexpr std::int64_t kDrafterTapsMax = 32;       // layers whose residual stream a drafter reads
inline constexpr std::int32_t kDraftLogitsRowsMax = 64;   // rows of a block drafter's logits in memory at once
inline constexpr std::int64_t kDraftBlockRowsMax = 16;    // rows of a drafter's block
inline constexpr std::int64_t kDraftCandidatesMax = 64;   // candidates of a drafted depth

// --- text ------------------------------------------------------------------------------------------------------------
inline constexpr std::size_t kTemplateSourceBytesMax = 1u << 20;
inline constexpr std::size_t kTemplateOutputBytesMax = 64u << 20;
inline constexpr std::uint64_t kTemplateStepsMax = 20'000'000;
inline constexpr int kTemplateDepthMax = 200;            // nesting of constructs in the source, and of values
inline constexpr int kTemplateExpressionDepthMax = 400;  // operators in a chain count, too
inline constexpr int kTemplateEvaluationDepthMax = 1200;
inline constexpr std::uint32_t kRegexMatchStepsMax = 10'000'000;
inline constexpr std::uint32_t kRegexHeapKibibytesMax = 64u << 10;
inline constexpr std::size_t kEncodeTextBytesMax = 64u << 20;
inline constexpr std::size_t kAddedTokenBytesMax = 1u << 12;
inline constexpr std::size_t kNormalizedBytesMax = 512u << 20;
inline constexpr int kTokenizerStepsMax = 64;  // normalizers, pre-tokenizers, decoders of one tokenizer

// --- grammars --------------------------------------------------------------------------------------------------------
inline constexpr std::size_t kGrammarSourceBytesMax = 256u << 10;  // a schema, pattern or grammar as a client sends it
inline constexpr std::size_t kGrammarExpressionsMax = 1u << 16;
inline constexpr std::size_t kGrammarRulesMax = 1u << 13;
inline constexpr std::size_t kGrammarLiteralBytesMax = 64u << 10;  // of all literal texts (enum values, property names)
inline constexpr std::size_t kGrammarTextBytesMax = 1u << 20;      // once written out for xgrammar
inline constexpr int kGrammarDepthMax = 200;                       // nesting of expressions inside a rule
inline constexpr int kGrammarRepeatMax = 1024;            // of anything but single characters
inline constexpr int kGrammarCharacterRepeatMax = 64;     // of a character class: each position has masks of its own
inline constexpr int kGrammarStringLengthMax = 1'000'000;  // minLength and maxLength
inline constexpr int kGrammarEscapedLengthMax = 24;       // maxLength up to which a string may hold escapes
inline constexpr std::int64_t kGrammarCostMax = 4096;     // compile time: a wide character class, once unrolled, counts 32
inline constexpr int kGrammarMergesMax = 4096;                // allOf, anyOf beside other keywords, $ref beside others
inline constexpr int kGrammarBlanksMax = 32;                  // between two JSON tokens
inline constexpr std::size_t kGrammarCacheEntriesMax = 64;
inline constexpr std::size_t kGrammarCacheBytesMax = 256u << 20;

// --- engine ----------------------------------------------------------------------------------------------------------
inline constexpr int kWindowRowsMax = 16;        // pending token + drafts of one lane in one pass, as a rule
inline constexpr int kTreeRowsMax = 16;          // rows of a window that is a tree
inline constexpr int kWideWindowRowsMax = 128;   // rows of a window that copies text, where slots hold that many
inline constexpr int kPassRowsMax = 512;         // rows of one forward pass on the CPU
inline constexpr int kLanesMax = 256;
inline constexpr int kKvPageTokens = 64;         // one attention tile (one-arithmetic.md, rule 5)
inline constexpr std::size_t kPassLogitsBytesMax = 64u << 20;  // logits of one pass beyond one row a stream (scoring)
inline constexpr std::size_t kPrefixNodesMax = 1u << 20;   // blocks of 64 tokens in the tree of kept prefixes
inline constexpr std::size_t kPromptMarksMax = 4096;       // message ends that a request may name
inline constexpr std::size_t kPrefixMediaMax = 65'536;     // distinct images and sounds in kept prefixes
inline constexpr std::size_t kStateHeaderBytesMax = 32u << 20;  // of a kept state on disk: tokens, page table, checksums
inline constexpr std::size_t kStateNameBytesMax = 4096;         // its identity, and its owner
inline constexpr std::size_t kStateGroupsMax = 64;
inline constexpr std::uint64_t kLearnManifestBytesMax = 256u << 20;
inline constexpr std::uint64_t kLearnSegmentBytesMax = 64u << 20;  // pages of one state file, as a rule
inline constexpr std::uint64_t kLearnQueueBytesMax = 192u << 20;   // waiting for the disk
inline constexpr std::size_t kLearnQueueStatesMax = 256;
inline constexpr std::size_t kLearnJobsMax = 64;  // kept prefixes that are still to be copied for the disk
inline constexpr std::size_t kLogitBiasTokensMax = 1024;   // biased ids of one stream
inline constexpr std::size_t kPrefillWidthsMax = 1024;     // prompt slices of one stream that its statistics list
inline constexpr std::size_t kStreamQueueMax = 1024;       // requests waiting for a lane
inline constexpr std::size_t kStreamEventsMax = 1u << 16;  // undelivered events of one stream

// --- recall store ----------------------------------------------------------------------------------------------------
inline constexpr std::size_t kRecallSegmentBytes = 1u << 20;  // a file; ids leave the store a file at a time
inline constexpr std::uint64_t kRecallBytesMin = 4ull << 20;  // of --recall-gib
inline constexpr std::uint64_t kRecallBytesMax = 8ull << 30;
inline constexpr std::size_t kRecallRecordTokensMax = 4096;     // longer texts become several records
inline constexpr std::size_t kRecallQueueTokensMax = 4u << 20;  // tokens that wait to be written
inline constexpr std::size_t kRecallQueueTextsMax = 1024;
inline constexpr std::int32_t kRecallMatchTokensMax = 64;  // of a match that are counted

// --- HTTP ------------------------------------------------------------------------------------------------------------
inline constexpr std::size_t kHttpLineBytesMax = 65'536;
inline constexpr std::size_t kHttpHeaderCountMax = 100;
inline constexpr std::size_t kHttpBodyBytesMax = 32u << 20;
inline constexpr std::size_t kHttpChunkExtensionBytesMax = 65'536;  // all extensions of a body, and its trailers
inline constexpr std::size_t kHttpPipelinedBytesMax = 256u << 10;    // read ahead while a reply is being written
inline constexpr int kHttpConnectionsMax = 4096;
inline constexpr int kHttpIdleSecondsMax = 900;
inline constexpr int kHttpRequestStalledSecondsMax = 120;
inline constexpr int kHttpClientNotReadingSecondsMax = 300;
inline constexpr int kHttpDrainSecondsMax = 60;      // running replies may finish this long after SIGTERM
inline constexpr int kSseKeepaliveSeconds = 10;
inline constexpr int kJsonDepthMax = 200;
inline constexpr std::size_t kJsonObjectKeysMax = 1024;  // ordered objects search linearly
inline constexpr int kChoicesMax = 8;  // n: replies of one request
inline constexpr std::size_t kToolsMax = 1024;          // tools that a request offers
inline constexpr std::size_t kToolNameBytesMax = 256;
inline constexpr std::size_t kStopStringsMax = 64;
inline constexpr std::size_t kStopStringBytesMax = 4096;

}  // namespace tensorfold::limits
