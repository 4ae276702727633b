// GET /health (api.md 3.10): bare with keys on, details without.
#include "serve/api/json_body.h"
#include "serve/handlers.h"

namespace tensorfold {

using Json = nlohmann::ordered_json;

HttpResponse handle_health(const ServedModel* model, const ServerSnapshot& server) {
  HttpResponse response;
  if (server.draining || model == nullptr) {
    response.status = 503;
    response.body = dump_json({{"status", server.draining ? "draining" : "loading"}});
    return response;
  }
  Json body = {{"status", "ok"}};
  if (!server.keys_required) {
    const EngineFacts& facts = model->engine->facts();
    const EngineLoad load = model->engine->load();
    body["model"] = model->names.front();
    body["model_ids"] = model->names;
    body["max_batch_size"] = facts.lanes;
    body["warming"] = false;
    body["memory"] = Json::object();
    body["live"] = {{"connections", load.running + load.waiting},
                    {"waiting", load.waiting},
                    {"decode_tokens_per_second", load.decode_tokens_per_second},
                    {"prefill_tokens_per_second", load.prefill_tokens_per_second}};
    body["busy"] = load.running + load.waiting > 0;
    body["requests_running"] = load.running;
    body["prompt_tokens_total"] = load.prompt_tokens_total;
    body["completion_tokens_total"] = load.reply_tokens_total;
    body["cached_tokens_total"] = load.cached_tokens_total;
    body["prefixes"] = {{"bytes", load.prefix_bytes},
                        {"bytes_max", facts.prefix_bytes},
                        {"queries_total", load.prefix_queries_total},
                        {"hits_total", load.prefix_hits_total},
                        {"waits_total", load.prefix_waits_total}};
    body["preemptions_total"] = load.preemptions_total;
    body["rounds_total"] = load.rounds_total;
    DraftCounts drafts;
    for (const DraftCounts& source : load.drafts_total) {
      drafts.drafted += source.drafted;
      drafts.accepted += source.accepted;
    }
    body["drafted_total"] = drafts.drafted;
    body["accepted_total"] = drafts.accepted;
    body["streams"] = facts.lanes;
    body["context_length"] = facts.context;
  }
  response.body = dump_json(body);
  return response;
}

}  // namespace tensorfold
