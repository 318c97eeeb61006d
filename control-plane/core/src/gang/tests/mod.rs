mod complaints;
mod fit;
mod histories;
mod model;
mod order;
mod reconciler;
mod table;
