mod restarts;
mod takeover;
mod world;
