// Placeholder so that the room builds before its first file lands; deleted with it.
namespace tensorfold {
extern const int room_engine_placeholder;
const int room_engine_placeholder = 0;
}
