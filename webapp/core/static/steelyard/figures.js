// Draws the charts of a page that has nothing else to choose.
import { drawAll } from "./charts.js";

drawAll();
